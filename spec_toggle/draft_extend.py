"""A draft forward over the last token of each request, outside a round."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from spec_toggle.compat import replaced
from spec_toggle.compat.batch import extend_fields, forward_batch, forwardable, named_lengths
from spec_toggle.compat.draft import draft_contexts, draft_runner_of, top_drafts

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

    ``batch``: a decode batch, unchanged on return. hidden: [batch, aux width], the
    target's hidden states there; tokens: int64 [batch], the pending tokens; is_wanted: bool
    [batch]: other rows compute something that means nothing, and write to the padding slot.
    Returns ``topk_p`` and ``topk_index`` [batch, topk] and ``hidden_states`` [batch, hidden].
    """
    runner, batch = draft_runner_of(worker), forwardable(batch)
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
        inputs = forward_batch(batch, runner, CaptureHiddenMode.LAST)
        inputs.return_logprob = False
        if inputs.extend_seq_lens_cpu is None:
            inputs.extend_seq_lens_cpu = [1] * len(tokens)  # backends take its maximum
        output = runner.forward(inputs).logits_output
    topk_p, topk_index = top_drafts(output.next_token_logits, worker.topk, batch.sampling_info)
    return {"topk_p": topk_p, "topk_index": topk_index, "hidden_states": output.hidden_states}


def _lengths(batch: Any) -> dict[str, Any]:
    """Extend and prefix lengths, on the host where the batch keeps host lengths."""
    if batch.seq_lens_cpu is None:
        lengths = batch.seq_lens.to(torch.int32)
        return named_lengths(batch, torch.ones_like(lengths), lengths - 1)
    count = len(batch.seq_lens)
    return named_lengths(batch, [1] * count, (batch.seq_lens_cpu - 1).tolist())
