"""The target writes the texts that its draft learns from, and those it is judged by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .llama import Cache, Target

Progress = Callable[[str, float, float], None]

# Every prompt is answered greedily once; further rounds through the prompts are sampled.
TEMPERATURES = (0.7, 1.0, 0.4)
# Finished texts leave the batch this often: looking costs a wait for the GPU.
_COMPACT_EVERY = 16


class Document(NamedTuple):
    """A chat prompt of ``prompt_len`` tokens and the target's answer, to its end or a limit."""

    tokens: list[int]
    prompt_len: int


def generate_for(
    seconds: float,
    target: Target,
    prompts: Sequence[list[int]],
    new_tokens: int,
    eos: int,
    rows: int,
    progress: Progress,
) -> list[Document]:
    """As many documents as ``seconds`` allow, ``rows`` at a time."""
    start = time.monotonic()
    documents: list[Document] = []

    def has_time() -> bool:
        elapsed = time.monotonic() - start
        tokens = sum(len(document.tokens) for document in documents)
        label = f"generating, {len(documents)} texts, {tokens / 1e6:.2f} M tokens"
        progress(label, min(elapsed, seconds), seconds)
        return elapsed < seconds

    for wave, temperature in _waves(prompts, rows):
        if not has_time():
            break
        documents += generate(target, wave, temperature, new_tokens, eos, has_time)
    if not documents:
        raise ValueError(f"{seconds:.0f} s are too short to generate anything")
    return documents


def _waves(prompts: Sequence[list[int]], rows: int) -> Iterator[tuple[list[list[int]], Tensor]]:
    """Batches of ``rows`` prompts with a temperature for each, without end."""
    pending: list[tuple[list[int], float]] = []
    turn = 0
    while True:
        while len(pending) < rows:
            temperature = TEMPERATURES[(turn - 1) % len(TEMPERATURES)] if turn else 0.0
            pending += [(prompt, temperature) for prompt in prompts]
            turn += 1
        wave, pending = pending[:rows], pending[rows:]
        yield [prompt for prompt, _ in wave], torch.tensor([t for _, t in wave])


@torch.inference_mode()
def generate(
    target: Target,
    prompts: Sequence[list[int]],
    temperature: Tensor,
    new_tokens: int,
    eos: int,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Document]:
    """One answer of at most ``new_tokens`` to each prompt; ``temperature`` ``[rows]``, 0 is greedy.

    Prompts are read token by token like answers, so all texts stand at the same position and
    neither padding nor masks are needed. Without time the answers end where they are.
    """
    device = target.embed_tokens.weight.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    width = int(lengths.max()) + new_tokens
    tokens = torch.full((len(prompts), width), eos, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, device=device)
    cache = Cache(target.shape, len(prompts), width, target.embed_tokens.weight)
    # Asked once: a look at the GPU in every step would stop it.
    heat = temperature.to(device) if bool(temperature.any()) else None
    alive = torch.arange(len(prompts), device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    known = width
    for position in range(width - 1):
        logits = target.step(tokens[alive, position], position, cache)
        following = _sample(logits, None if heat is None else heat[alive])
        is_answer = position + 1 >= lengths[alive]
        following = torch.where(is_answer, following, tokens[alive, position + 1])
        tokens[alive, position + 1] = following
        done |= is_answer & ((following == eos) | (position + 1 - lengths[alive] >= new_tokens))
        if position % _COMPACT_EVERY == 0:
            if not has_time():
                known = position + 2
                break
            rest = (~done).nonzero().flatten()
            if len(rest) == 0:
                break
            if len(rest) < len(alive):
                alive, done = alive[rest], done[rest]
                cache.keep(rest)
    rows = zip(tokens[:, :known].tolist(), lengths.tolist(), strict=True)
    answers = (_cut(row, length, new_tokens, eos) for row, length in rows)
    return [document for document in answers if len(document.tokens) > document.prompt_len]


def _sample(logits: Tensor, temperature: Tensor | None) -> Tensor:
    """One token id per row of ``logits`` ``[rows, vocab]``, by the Gumbel-max trick; 0 and None
    are greedy."""
    if temperature is None:
        return logits.argmax(-1)
    gumbel = torch.empty_like(logits, dtype=torch.float32).exponential_()
    gumbel = gumbel.clamp_min_(1e-20).log_().neg_()
    return torch.argmax(logits + temperature[:, None] * gumbel, dim=-1)


def _cut(row: list[int], prompt_len: int, new_tokens: int, eos: int) -> Document:
    """A row up to the first end-of-text of its answer, which stays."""
    row = row[: prompt_len + new_tokens]
    end = row.index(eos, prompt_len) + 1 if eos in row[prompt_len:] else len(row)
    return Document(row[:end], prompt_len)
