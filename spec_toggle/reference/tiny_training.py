"""Training of the tiny pair, and a simulation of greedy draft-and-verify rounds."""

import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .tiny_models import Draft, Target

Progress = Callable[[str, int, int], None]

DRAFT_STEPS = 3
# (sequence length, sequences a step, steps): long sequences come last, because they cost more a
# token and only teach that a lookup still works over a distance.
TARGET_PLAN = ((128, 8, 120), (512, 3, 35))
DRAFT_PLAN = ((128, 8, 110),)
_STEP_WEIGHTS = (1.0, 0.8, 0.64)


class Muon:
    """Momentum with orthogonal updates for matrices, AdamW for the rest; few steps go far."""

    def __init__(self, model: nn.Module, total: int, matrix_lr: float, other_lr: float) -> None:
        matrices = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
        ]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        self._groups = list(by_shape.values())
        self._momenta = [torch.zeros(len(g), *g[0].shape) for g in self._groups]
        self._adam = torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._total, self._matrix_lr, self._other_lr = total, matrix_lr, other_lr
        self._step = 0

    def step(self) -> None:
        self._step += 1
        progress = self._step / self._total
        scale = min(1.0, progress / 0.05, max(0.02, (1.0 - progress) / 0.5))
        with torch.no_grad():
            self._step_matrices(self._matrix_lr * scale)
        for param_group in self._adam.param_groups:
            param_group["lr"] = self._other_lr * scale
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def _step_matrices(self, lr: float) -> None:
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(gradient, 0.1)
            update = _orthogonal(gradient.lerp(momentum, 0.9))
            size = lr * math.sqrt(max(1.0, update.shape[1] / update.shape[2]))
            for parameter, change in zip(group, update, strict=True):
                parameter.sub_(change, alpha=size)
                parameter.grad = None


def _orthogonal(batch: Tensor) -> Tensor:
    """Each matrix of `batch` with its singular values pushed towards one (Newton-Schulz)."""
    tall = batch.shape[1] > batch.shape[2]
    x = batch.mT if tall else batch
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class TokenSource:
    """Batches of fixed length, cut from encoded documents at their beginnings and at random."""

    def __init__(self, documents: list[Tensor], seed: str) -> None:
        self._documents = documents
        self._rng = random.Random(seed)

    def batch(self, rows: int, length: int) -> Tensor:
        return torch.stack([self._row(length) for _ in range(rows)])

    def most_frequent(self, count: int, vocab: int) -> Tensor:
        """The `count` most frequent token ids, ascending."""
        uses = torch.bincount(torch.cat(self._documents), minlength=vocab)
        return uses.sort(descending=True, stable=True).indices[:count].sort().values

    def _row(self, length: int) -> Tensor:
        document = self._rng.choice(self._documents)
        # Half of the rows begin where a document begins, as a prompt does.
        room = document.shape[0] - length
        start = self._rng.randint(0, room) if self._rng.random() < 0.5 else 0
        return document[start : start + length]


def train_target(target: Target, source: TokenSource, progress: Progress) -> None:
    total = sum(steps for _, _, steps in TARGET_PLAN)
    optimizer = Muon(target, total, matrix_lr=0.03, other_lr=0.01)
    done = 0
    for length, rows, steps in TARGET_PLAN:
        for _ in range(steps):
            tokens = source.batch(rows, length)
            logits, _ = target(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            done += 1
            progress(f"target, loss {loss.item():.3f}", done, total)


def train_draft(
    draft: Draft, target: Target, hot: Tensor, source: TokenSource, progress: Progress
) -> None:
    """Distil `target` into `draft`, which feeds on its own states as it will in a round.

    `hot` holds the target ids of the draft's vocabulary.
    """
    total = sum(steps for _, _, steps in DRAFT_PLAN)
    optimizer = Muon(draft, total, matrix_lr=0.03, other_lr=0.01)
    done = 0
    for length, rows, steps in DRAFT_PLAN:
        for _ in range(steps):
            tokens = source.batch(rows, length)
            loss = _draft_loss(draft, target, hot, tokens)
            loss.backward()
            optimizer.step()
            done += 1
            progress(f"draft, loss {loss.item():.3f}", done, total)


def _draft_loss(draft: Draft, target: Target, hot: Tensor, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        logits, aux = target(tokens)
        embeds = target.embed_tokens(tokens[:, 1:])
        goal = logits[..., hot].softmax(-1)
        # Where the target's choice is no draft token there is nothing to imitate.
        known = torch.isin(logits.argmax(-1), hot).float()
    loss = torch.zeros(())
    for step, out in enumerate(draft(embeds, aux[:, :-1], DRAFT_STEPS)):
        first = 1 + step
        wanted = goal[:, first : first + out.shape[1]]
        mask = known[:, first : first + out.shape[1]]
        entropy = -(wanted * out.log_softmax(-1)).sum(-1)
        loss = loss + _STEP_WEIGHTS[step] * (entropy * mask).sum() / mask.sum()
    return loss


def greedy(target: Target, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Prompts with their greedy continuations."""
    rows = [list(prompt) for prompt in prompts]
    for _ in range(new_tokens):
        width = max(len(row) for row in rows)
        # Padding on the right is never seen by a causal model.
        padded = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        with torch.no_grad():
            logits, _ = target(padded)
        for index, row in enumerate(rows):
            row.append(int(logits[index, len(row) - 1].argmax()))
    return rows


def accept_length(
    target: Target, draft: Draft, hot: Tensor, prompts: list[list[int]], new_tokens: int
) -> float:
    """Mean tokens a round (accepted drafts and the bonus token) of greedy chain speculation.

    Verified output equals the target's greedy text, and a draft after a rejected one does not
    count, so every round can be read off one forward over that text.
    """
    rounds = produced = 0
    for prompt, row in zip(prompts, greedy(target, prompts, new_tokens), strict=True):
        tokens = torch.tensor([row])
        with torch.no_grad():
            _, aux = target(tokens)
            steps = draft(target.embed_tokens(tokens[:, 1:]), aux[:, :-1], DRAFT_STEPS)
        guesses = torch.stack([hot[out[0].argmax(-1)] for out in steps], dim=1).tolist()
        committed = len(prompt) + 1
        while committed + DRAFT_STEPS < len(row):
            truth = row[committed : committed + DRAFT_STEPS]
            hits = 0
            while hits < DRAFT_STEPS and guesses[committed - 2][hits] == truth[hits]:
                hits += 1
            rounds += 1
            produced += hits + 1
            committed += hits + 1
    return produced / rounds
