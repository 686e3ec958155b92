"""Upstream's draft-extend over one token of each request, outside a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_toggle.compat import replaced
from spec_toggle.compat.batch import extend_fields, one_token_shorter
from spec_toggle.compat.draft import draft_contexts, draft_extend, extend_width

# The KV pool's padding slot: what is written there is never read.
DUMMY_SLOT = 0


def extend_one_token(
    worker: Any, batch: Any, result: Any, is_wanted: torch.Tensor | None = None
) -> None:
    """Run the draft over the token that a plain step gave; completes the result's draft input.

    ``batch``: a decode batch with the lengths before that token, unchanged on return.
    ``result``: ``next_token_ids`` int64 [batch], ``logits_output.hidden_states``
    [batch, aux width]. is_wanted: bool [batch]; the other rows write to the padding slot, and
    their state means nothing.

    Upstream's draft-extend graphs have the width of a round. Where they serve the one token is
    padded to it, since a replay costs less than launching a narrower forward kernel by kernel; what
    the padding writes lies past the committed length, where refused drafts lie after a round.
    """
    width = extend_width(worker)
    columns = torch.arange(width, device=batch.seq_lens.device)
    positions = batch.seq_lens.long().unsqueeze(1) + columns
    table = worker.req_to_token_pool.req_to_token
    slots = table[batch.req_pool_indices.long().unsqueeze(1), positions].to(torch.int64)
    if is_wanted is not None:
        slots = torch.where(is_wanted.unsqueeze(1), slots, DUMMY_SLOT)
    output = result.logits_output
    with (
        draft_contexts(worker),
        replaced(batch, **extend_fields(batch, slots.flatten())),
        replaced(result, next_token_ids=_pad_rows(result.next_token_ids, width)),
        replaced(output, hidden_states=_pad_rows(output.hidden_states, width)),
    ):
        draft_extend(worker, batch, result, width)


def draft_state(
    worker: Any, batch: Any, hidden: torch.Tensor, tokens: torch.Tensor, is_wanted: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The draft state that a round starts from, at each request's last committed position.

    ``batch``: a decode batch. hidden: [batch, aux width], the target's hidden states there;
    tokens: int64 [batch], the pending tokens. Returns ``topk_p`` and ``topk_index``
    [batch, topk] and ``hidden_states`` [batch, hidden].
    """
    state = EagleDraftInput()
    result = SimpleNamespace(
        next_token_ids=tokens,
        logits_output=SimpleNamespace(hidden_states=hidden),
        accept_lens=torch.ones(len(tokens), dtype=torch.int32, device=tokens.device),
        new_seq_lens=batch.seq_lens,
        next_draft_input=state,
        prepared_draft_extend_inputs=None,
    )
    with one_token_shorter(batch):
        extend_one_token(worker, batch, result, is_wanted)
    return {name: getattr(state, name) for name in ("topk_p", "topk_index", "hidden_states")}


def _pad_rows(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[batch, ...] to [batch * width, ...]: each row followed by width - 1 rows of zeros."""
    if width == 1:
        return rows
    padded = rows.new_zeros((rows.shape[0], width, *rows.shape[1:]))
    padded[:, 0] = rows
    return padded.flatten(0, 1)
