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
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

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
    """Tokens per request of the fastest draft-extend by one: those of a round where graphs are."""
    draft = draft_of(worker)
    if not hasattr(draft, "parallel_layout"):  # 0.5.12, see ``draft_extend``
        return 1
    if draft.cuda_graph_runner_for_draft_extend is None:
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
        _extend_as_prompt(worker, batch, result)
        return
    widths: dict[str, Any] = {"speculative_num_draft_tokens": width}
    if not hasattr(draft, "parallel_layout"):
        # 0.5.12, where this worker always drafts a chain, reads the number of steps too. Its graphs
        # with triton attention take the new tokens, padding too, for a part of the prefix.
        widths["speculative_num_steps"] = width - 1
        widths["cuda_graph_runner_for_draft_extend"] = None
    with replaced(draft, **widths):
        draft._draft_extend_for_decode(batch, result)


def _extend_as_prompt(worker: Any, batch: Any, result: Any) -> None:
    """``draft_extend`` by the worker without overlap of 0.5.12: as over a prompt of one new token.

    Not as after its rounds. There triton attention takes the new tokens for a part of the prefix
    too, so that the state would not be that after a prompt, which a draft sync may leave out; and
    its graphs lay tokens out as if each request had accepted all drafts.
    """
    count, on_host = len(batch.reqs), batch.seq_lens_cpu
    batch.input_ids = result.next_token_ids.to(torch.int64)
    batch.forward_mode = ForwardMode.EXTEND
    batch.extend_lens, batch.prefix_lens = [1] * count, on_host.tolist()
    batch.extend_num_tokens = count
    batch.seq_lens, batch.seq_lens_cpu = batch.seq_lens + 1, on_host + 1
    batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
    hidden = result.logits_output.hidden_states
    # It shifts a prompt by one token, request by request; these are in their places.
    with replaced(EagleDraftInput, prepare_for_extend=lambda state, batch: None):
        worker.forward_draft_extend(batch, hidden, batch.input_ids, batch.seq_lens_cpu)
    for name in ("topk_p", "topk_index", "hidden_states"):
        setattr(result.next_draft_input, name, getattr(batch.spec_info, name))


def aux_width(worker: Any) -> int:
    """Elements of a target's hidden state, as the draft reads it."""
    try:
        from sglang.srt.speculative.eagle_utils import get_draft_input_from_target_hidden_dim
    except ImportError:
        from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

        return int(EagleDraftExtendInput.hidden_size_for(draft_of(worker)))
    return int(get_draft_input_from_target_hidden_dim(draft_runner_of(worker)))


def state_spec(worker: Any) -> tuple[int, torch.dtype]:
    """Width and type of the hidden state that a round starts from."""
    try:
        from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec
    except ImportError:
        from sglang.srt.speculative.eagle_info import EagleDraftInput as DraftInput

        draft = draft_of(worker)
        return int(DraftInput.hidden_size_for(draft)), DraftInput.dtype_for(draft)
    size, dtype = get_draft_recurrent_hidden_state_spec(draft_runner_of(worker))
    return int(size), dtype


def prompt_tail_tokens(batch: Any, next_token_ids: torch.Tensor) -> torch.Tensor:
    """What the draft reads at the last position of each prompt or chunk of one, [batch]."""
    try:
        from sglang.srt.speculative.eagle_worker_v2 import _eagle_prefill_tail_tokens
    except ImportError:
        return next_token_ids
    return _eagle_prefill_tail_tokens(batch, next_token_ids)
