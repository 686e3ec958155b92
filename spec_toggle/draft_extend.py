"""A draft forward over the last token of each request, outside a round."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
from sglang.srt.speculative.spec_utils import renorm_draft_probs
from sglang.srt.utils.common import fast_topk

from spec_toggle.compat import draft_contexts, replaced

# The KV pool's padding slot: what is written there is never read.
DUMMY_SLOT = 0


def extend_one_token(
    worker: Any,
    batch: Any,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    is_wanted: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The draft state that a round starts from, at each request's last committed position.

    ``batch``: a decode ``ScheduleBatch``, unchanged on return. hidden: [batch, aux width], the
    target's hidden states there; tokens: int64 [batch], the pending tokens; is_wanted: bool
    [batch]: other rows compute something that means nothing, and write to the padding slot.
    Returns ``topk_p`` and ``topk_index`` [batch, topk] and ``hidden_states`` [batch, hidden].
    """
    runner = worker.draft_worker.draft_runner
    rows, positions = batch.req_pool_indices.long(), batch.seq_lens.long() - 1
    slots = worker.req_to_token_pool.req_to_token[rows, positions].to(torch.int64)
    fields = extend_fields(batch, torch.where(is_wanted, slots, DUMMY_SLOT))
    fields.update(
        input_ids=tokens,
        spec_info=EagleDraftExtendInput(
            hidden_states=hidden, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1
        ),
        forward_mode=ForwardMode.EXTEND,
        extend_num_tokens=len(tokens),
        **_lengths(batch),
    )
    with draft_contexts(worker), replaced(batch, **fields):
        forward_batch = ForwardBatch.init_new(
            batch,
            runner,
            capture_hidden_mode=CaptureHiddenMode.LAST,
            return_hidden_states_before_norm=False,
        )
        forward_batch.return_logprob = False
        if forward_batch.extend_seq_lens_cpu is None:
            forward_batch.extend_seq_lens_cpu = [1] * len(tokens)  # backends take its maximum
        output = runner.forward(forward_batch).logits_output
    return _draft_state(worker, batch, output)


def extend_fields(batch: Any, slots: torch.Tensor) -> dict[str, Any]:
    """Batch fields that a draft-extend rebinds, so that they can be restored after it."""
    return {
        "out_cache_loc": slots,
        "input_ids": batch.input_ids,
        "spec_info": batch.spec_info,
        "forward_mode": batch.forward_mode,
        "extend_lens": batch.extend_lens,
        "prefix_lens": batch.prefix_lens,
        "extend_num_tokens": batch.extend_num_tokens,
        "seq_lens_sum": batch.seq_lens_sum,
        "extend_logprob_start_lens": None,
    }


def _draft_state(worker: Any, batch: Any, output: Any) -> dict[str, torch.Tensor]:
    """As upstream's draft-extend leaves it."""
    logits = output.next_token_logits
    if worker.topk == 1:
        topk_index = torch.argmax(logits, dim=-1, keepdim=True)
        topk_p = torch.ones_like(topk_index, dtype=torch.float32)
    else:
        probs = renorm_draft_probs(logits, batch.sampling_info, False)
        topk_p, topk_index = fast_topk(probs, worker.topk, dim=-1)
    return {
        "topk_p": topk_p,
        "topk_index": topk_index,
        "hidden_states": output.hidden_states,
    }


def _lengths(batch: Any) -> dict[str, Any]:
    """Extend and prefix lengths, on the host where the batch keeps host lengths."""
    count = len(batch.seq_lens)
    if batch.seq_lens_cpu is None:
        extend = torch.ones(count, device=batch.device, dtype=torch.int32)
        return {"extend_lens": extend, "prefix_lens": batch.seq_lens.to(torch.int32) - 1}
    return {"extend_lens": [1] * count, "prefix_lens": (batch.seq_lens_cpu - 1).tolist()}
