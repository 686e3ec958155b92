"""The draft model and its worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.layers.moe.utils import (
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from spec_toggle.compat import replaced


def draft_of(worker: Any) -> Any:
    """The draft's worker; the worker without overlap of 0.5.12 is its own."""
    return getattr(worker, "draft_worker", worker)


def draft_runner_of(worker: Any) -> Any:
    draft = draft_of(worker)
    return draft.draft_runner if hasattr(draft, "draft_runner") else draft.draft_model_runner


def prefill_method(worker: Any) -> str:
    """Name of the draft worker's method that runs the draft over a prompt."""
    if draft_of(worker) is worker:
        return "forward_draft_extend"
    return "_draft_extend_for_prefill"


@contextlib.contextmanager
def draft_contexts(worker: Any) -> Iterator[None]:
    """The process groups and MoE backends that upstream enters around every draft forward.

    Source: ``forward_batch_generation`` of the EAGLE workers.
    """
    draft = draft_of(worker)
    if hasattr(draft, "parallel_layout"):
        from sglang.srt.speculative.spec_utils import draft_tp_context

        groups = draft_tp_context(draft.parallel_layout)
    else:
        groups = draft.draft_tp_context(draft_runner_of(worker).tp_group)
    with groups, speculative_moe_backend_context(), speculative_moe_a2a_backend_context():
        yield


def extend_width(worker: Any) -> int:
    """Tokens per request of the fastest draft-extend by one: those of a round where graphs are.

    The worker without overlap of 0.5.12 has graphs for any number of accepted tokens.
    """
    draft = draft_of(worker)
    if draft is worker or draft.cuda_graph_runner_for_draft_extend is None:
        return 1
    return int(draft.speculative_num_draft_tokens)


def draft_extend(worker: Any, batch: Any, result: Any, width: int) -> None:
    """Upstream's draft-extend of a round, by ``width`` tokens of each request of a decode batch.

    Rebinds fields of ``batch``. ``result``: ``next_token_ids`` int64 [batch * width],
    ``logits_output.hidden_states`` [batch * width, aux width]; its ``next_draft_input`` gets the
    draft state.
    """
    draft = draft_of(worker)
    if draft is worker:
        _extend_accepted(worker, batch, result)
        return
    widths = {"speculative_num_draft_tokens": width}
    if not hasattr(draft, "parallel_layout"):
        # 0.5.12, where this worker always drafts a chain, reads the number of steps too.
        widths["speculative_num_steps"] = width - 1
    with replaced(draft, **widths):
        draft._draft_extend_for_decode(batch, result)


def _extend_accepted(worker: Any, batch: Any, result: Any) -> None:
    """``draft_extend`` by the worker without overlap of 0.5.12: one accepted token per request."""
    count, device = len(batch.reqs), batch.seq_lens.device
    batch.spec_info = EagleDraftExtendInput(
        hidden_states=result.logits_output.hidden_states,
        input_ids=result.next_token_ids,
        num_correct_drafts=torch.zeros(count, dtype=torch.int32, device=device),
        num_accept_tokens=torch.ones(count, dtype=torch.int32, device=device),
        num_accept_tokens_cpu=[1] * count,
        seq_lens=batch.seq_lens + 1,
        seq_lens_cpu=batch.seq_lens_cpu + 1,
        req_pool_indices=batch.req_pool_indices,
    )
    state = worker.forward_draft_extend_after_decode(batch)
    for name in ("topk_p", "topk_index", "hidden_states"):
        setattr(result.next_draft_input, name, getattr(state, name))


def aux_width(worker: Any) -> int:
    """Elements of a target's hidden state, as the draft reads it."""
    try:
        from sglang.srt.speculative.eagle_utils import get_draft_input_from_target_hidden_dim
    except ImportError:
        from sglang.srt.speculative.eagle_info import EagleDraftExtendInput as ExtendInput

        return int(ExtendInput.hidden_size_for(draft_of(worker)))
    return int(get_draft_input_from_target_hidden_dim(draft_runner_of(worker)))


def state_spec(worker: Any) -> tuple[int, torch.dtype]:
    """Width and type of the hidden state that a round starts from."""
    try:
        from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec
    except ImportError:
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        draft = draft_of(worker)
        return int(EagleDraftInput.hidden_size_for(draft)), EagleDraftInput.dtype_for(draft)
    size, dtype = get_draft_recurrent_hidden_state_spec(draft_runner_of(worker))
    return int(size), dtype


def prompt_tail_tokens(batch: Any, next_token_ids: torch.Tensor) -> torch.Tensor:
    """What the draft reads at the last position of each prompt or chunk of one, [batch]."""
    try:
        from sglang.srt.speculative.eagle_worker_v2 import _eagle_prefill_tail_tokens
    except ImportError:
        return next_token_ids
    return _eagle_prefill_tail_tokens(batch, next_token_ids)
