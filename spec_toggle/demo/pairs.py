"""The model pairs that the demo can serve, and the prompts for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PAIRS = ("reference", "tiny")
PROMPTS = 64
PROMPT_SEED = 7

Progress = Callable[[str, int, int], None]


class Prompt(NamedTuple):
    """What the server gets, and what a reader sees in its place."""

    text: str
    shown: str


@dataclass(frozen=True)
class DemoPair:
    """``ends``: answers end where the target ends them, else all are of the greatest length."""

    target: Path
    draft: Path
    prompts: list[Prompt]
    ends: bool


class PairError(RuntimeError):
    """A pair cannot be had; the message is one line."""


def load_pair(name: str, progress: Progress) -> DemoPair:
    """The pair ``name`` of ``PAIRS``, from the cache or made now."""
    return _reference() if name == "reference" else _tiny(progress)


def _reference() -> DemoPair:
    try:
        from benchmarks.reference_pair.fetch import FetchError
        from benchmarks.reference_pair.pair import reference_pair, render_chats
        from benchmarks.reference_pair.prompts import held_out_prompts
    except ModuleNotFoundError as error:
        raise PairError(f"{error}: run in a clone of the repository, or use --pair tiny") from None
    try:
        pair = reference_pair()
    except FetchError as error:
        raise PairError(f"{error} (or use --pair tiny)") from None
    questions = held_out_prompts()[:PROMPTS]
    chats = render_chats(pair.target, questions)
    prompts = [
        Prompt(chat, f"{question} — ") for chat, question in zip(chats, questions, strict=True)
    ]
    return DemoPair(pair.target, pair.head, prompts, ends=True)


def _tiny(progress: Progress) -> DemoPair:
    from spec_toggle.reference.tiny_pair import build_tiny_pair, held_out_prompts

    pair = build_tiny_pair(progress=progress)
    prompts = [Prompt(text, text) for text in held_out_prompts(PROMPTS, PROMPT_SEED)]
    return DemoPair(pair.target, pair.draft, prompts, ends=False)
