"""Training of the head with training-time test: it feeds on its own states, as in a round."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .draft import Draft
from .generate import Document, Progress
from .llama import Target
from .simulate import pad

_WARM_UP = 0.03
_LOG_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """``steps``: of the training-time test, each weighing ``decay`` times the one before."""

    seconds: float
    steps: int = 5
    decay: float = 0.8
    batch_tokens: int = 16384
    matrix_lr: float = 0.02
    other_lr: float = 1e-3
    seed: int = 0
    max_updates: int | None = None


def most_frequent(documents: Sequence[Document], vocab: int, count: int) -> tuple[Tensor, float]:
    """The ``count`` ids used most in answers, ascending, and the share of all answers they are."""
    answers = [torch.tensor(document.tokens[document.prompt_len :]) for document in documents]
    uses = torch.bincount(torch.cat(answers), minlength=vocab)
    top = uses.sort(descending=True, stable=True)
    share = float(top.values[:count].sum() / uses.sum())
    return top.indices[:count].sort().values, share


def batches(
    documents: Sequence[Document], batch_tokens: int, rng: random.Random
) -> Iterator[list[Document]]:
    """Documents of similar length, about ``batch_tokens`` with padding, without end."""
    while True:
        # Equal lengths are shuffled anew in every pass, by the order `sorted` starts from.
        ordered = sorted(rng.sample(list(documents), len(documents)), key=lambda d: len(d.tokens))
        passes: list[list[Document]] = []
        start = 0
        for end in range(1, len(ordered) + 1):
            longest = len(ordered[min(end, len(ordered) - 1)].tokens)
            if end == len(ordered) or (end + 1 - start) * longest > batch_tokens:
                passes.append(ordered[start:end])
                start = end
        rng.shuffle(passes)
        yield from passes


def answer_mask(batch: Sequence[Document], width: int) -> Tensor:
    """``[rows, width]``: whether the token after a position is one of the answer."""
    positions = torch.arange(width)[None]
    first = torch.tensor([document.prompt_len - 1 for document in batch])[:, None]
    last = torch.tensor([len(document.tokens) - 2 for document in batch])[:, None]
    return (positions >= first) & (positions <= last)


def loss_and_hits(
    draft: Draft, target: Target, batch: Sequence[Document], steps: int, decay: float
) -> tuple[Tensor, list[Tensor]]:
    """Cross entropy with the target's distribution over the draft's tokens, and by step the share
    of positions where both choose the same token."""
    device = target.embed_tokens.weight.device
    tokens = pad(batch, device)
    mask = answer_mask(batch, tokens.shape[1]).to(device)
    with torch.no_grad():
        states, aux = target(tokens)
        embeds = target.embed_tokens(tokens[:, 1:])
        # Every step is judged by the same distributions, so they are made once.
        logits = target.logits(states[mask])
        goal = logits[:, draft.hot].float().softmax(-1)
        choice = logits.argmax(-1)
        del logits
        # Where the target's choice is no draft token there is nothing to imitate.
        known = torch.isin(choice, draft.hot)
        place = mask.flatten().cumsum(0).view_as(mask) - 1
    loss = torch.zeros((), device=device)
    hits = []
    for step, out in enumerate(draft(embeds.float(), aux[:, :-1].float(), steps)):
        window = slice(1 + step, 1 + step + out.shape[1])
        rows = place[:, window][mask[:, window]]
        guess = draft.lm_head(out[mask[:, window]]).float()
        entropy = -(goal[rows] * guess.log_softmax(-1)).sum(-1)
        counted = known[rows]
        loss = loss + decay**step * (entropy * counted).sum() / counted.sum().clamp_min(1)
        hits.append((draft.hot[guess.argmax(-1)] == choice[rows]).float().mean().detach())
    return loss, hits


def train(
    draft: Draft,
    target: Target,
    documents: Sequence[Document],
    settings: Settings,
    evaluate: Callable[[], dict[str, Any]],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Train until the time, or the number of updates, is over; returns the log."""
    optimizers = _optimizers(draft, settings)
    stream = batches(documents, settings.batch_tokens, random.Random(f"batches-{settings.seed}"))
    device = target.embed_tokens.weight.device.type
    log: list[dict[str, Any]] = [{"seconds": 0.0, "updates": 0, "tokens": 0, **evaluate()}]
    start, updates, seen = time.monotonic(), 0, 0
    share = 0.0
    while share < 1.0:
        for optimizer in optimizers:
            _schedule(optimizer, share)
        batch = next(stream)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss, hits = loss_and_hits(draft, target, batch, settings.steps, settings.decay)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        updates += 1
        seen += sum(len(document.tokens) for document in batch)
        elapsed = time.monotonic() - start
        share = max(elapsed / settings.seconds, updates / (settings.max_updates or math.inf))
        if share >= 1.0 or elapsed - log[-1]["seconds"] > _LOG_EVERY_S:
            entry = {"seconds": round(elapsed, 1), "updates": updates, "tokens": seen}
            log.append({**entry, **_figures(loss, hits), **evaluate()})
        label = f"training, {updates} updates, accept {log[-1]['accept_len']:.2f}"
        progress(label, min(elapsed, settings.seconds), settings.seconds)
    return log


def _figures(loss: Tensor, hits: list[Tensor]) -> dict[str, Any]:
    return {"loss": round(loss.item(), 4), "agreement": [round(h.item(), 4) for h in hits]}


def _optimizers(draft: Draft, settings: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside, AdamW for norms and the output matrix."""
    inner: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in draft.named_parameters():
        is_inner = parameter.ndim == 2 and not name.startswith("lm_head")
        (inner if is_inner else others).append(parameter)
    muon = torch.optim.Muon(inner, lr=settings.matrix_lr, weight_decay=0.0)
    adam = torch.optim.AdamW(others, lr=settings.other_lr, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return [muon, adam]


def _schedule(optimizer: torch.optim.Optimizer, share: float) -> None:
    """A short rise, a plateau, and a linear fall over the second half."""
    scale = min(1.0, share / _WARM_UP + 0.01, max(0.02, (1.0 - share) / 0.5))
    for group in optimizer.param_groups:
        group["lr"] = group["full_lr"] * scale
