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
from sglang.srt.utils.common import fast_topk


def draft_of(worker: Any) -> Any:
    """The draft's worker; the worker without overlap of 0.5.12 is its own."""
    return getattr(worker, "draft_worker", worker)


def draft_runner_of(worker: Any) -> Any:
    draft = draft_of(worker)
    return draft.draft_runner if hasattr(draft, "draft_runner") else draft.draft_model_runner


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


def round_widths(draft: Any, width: int) -> dict[str, int]:
    """What a draft worker's draft-extend takes its tokens per request from, for ``width`` tokens.

    0.5.12, where it is always a chain, reads the number of steps too.
    """
    widths = {"speculative_num_draft_tokens": width}
    if not hasattr(draft, "parallel_layout"):
        widths["speculative_num_steps"] = width - 1
    return widths


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


def top_drafts(
    logits: torch.Tensor, topk: int, sampling_info: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and tokens [batch, topk] of a round's start, as a draft-extend leaves them."""
    try:
        from sglang.srt.speculative.spec_utils import renorm_draft_probs
    except ImportError:
        probs = torch.softmax(logits, dim=-1)
    else:
        if topk == 1:
            tokens = torch.argmax(logits, dim=-1, keepdim=True)
            return torch.ones_like(tokens, dtype=torch.float32), tokens
        probs = renorm_draft_probs(logits, sampling_info, False)
    top_p, top_index = fast_topk(probs, topk, dim=-1)
    return top_p, top_index
