"""Greedy chain speculation read off a text that the target wrote greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .draft import Draft
from .generate import Document
from .llama import Target

_ROWS = 16


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``accept_len``: mean tokens a round, accepted drafts and the bonus token. ``by_step``: of the
    rounds that came to a draft step, the share that accepted its token."""

    accept_len: float
    by_step: tuple[float, ...]
    rounds: int

    def record(self) -> dict[str, Any]:
        return {
            "accept_len": round(self.accept_len, 4),
            "by_step": [round(share, 4) for share in self.by_step],
            "rounds": self.rounds,
        }

    @classmethod
    def of(cls, hits: Sequence[int], steps: int) -> Acceptance:
        """From the accepted drafts of every round."""
        reached = [sum(h >= step for h in hits) for step in range(steps + 1)]
        by_step = tuple(reached[s + 1] / max(1, reached[s]) for s in range(steps))
        return cls(1 + sum(hits) / max(1, len(hits)), by_step, len(hits))


@torch.inference_mode()
def simulate(
    target: Target, draft: Draft, documents: Sequence[Document], steps: int = 3
) -> Acceptance:
    """Acceptance of chains of ``steps`` drafts over greedy ``documents``.

    Verified output is the target's greedy text and drafts after a rejected one do not count, so one
    forward over the text holds every round. A round that its text cuts short is left out.
    """
    hits: list[int] = []
    for first in range(0, len(documents), _ROWS):
        batch = documents[first : first + _ROWS]
        guesses = _guesses(target, draft, batch, steps).tolist()
        for document, guessed in zip(batch, guesses, strict=True):
            hits += chain_hits(document, guessed, steps)
    return Acceptance.of(hits, steps)


def chain_hits(document: Document, guessed: Sequence[Sequence[int]], steps: int) -> list[int]:
    """Accepted drafts of each round; ``guessed[p]`` are the guesses for the tokens after the one at
    ``p + 1``, made with the target's states up to ``p``."""
    hits = []
    # The first token of an answer comes from the prompt's own forward.
    committed = document.prompt_len + 1
    while committed + steps < len(document.tokens):
        truth = document.tokens[committed : committed + steps]
        count = 0
        while count < steps and guessed[committed - 2][count] == truth[count]:
            count += 1
        hits.append(count)
        committed += count + 1
    return hits


def _guesses(target: Target, draft: Draft, batch: Sequence[Document], steps: int) -> Tensor:
    """Token ids ``[rows, anchors, steps]``."""
    tokens = pad(batch, target.embed_tokens.weight.device)
    _, aux = target(tokens)
    states = draft(target.embed_tokens(tokens[:, 1:]).float(), aux[:, :-1].float(), steps)
    return torch.stack([draft.hot[draft.lm_head(s).argmax(-1)] for s in states], dim=-1)


def pad(batch: Sequence[Document], device: torch.device) -> Tensor:
    """Token ids ``[rows, longest]``, zeros on the right."""
    rows = [torch.tensor(document.tokens) for document in batch]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
