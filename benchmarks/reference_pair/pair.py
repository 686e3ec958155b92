"""The pair as others use it: two folders, and prompts in the target's chat format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .fetch import FetchError, target_folder

HEAD = Path(__file__).with_name("head")


class ReferencePair(NamedTuple):
    target: Path
    head: Path

    @property
    def accept_len(self) -> float:
        """What the card says: simulated, chain 3-1-4, on held-out prompts."""
        return float(json.loads((self.head / "card.json").read_text())["held_out"]["accept_len"])


def reference_pair(head: Path = HEAD) -> ReferencePair:
    """The target from the cache (first fetched, if need be) and the head of this repository, or
    another one.

    Raises:
        FetchError: the target cannot be fetched, or no head was trained yet; one line.
    """
    if not (head / "model.safetensors").is_file():
        raise FetchError(f"no head in {head}: run python -m benchmarks.reference_pair train")
    return ReferencePair(target_folder(), head)


def render_chats(folder: Path, prompts: Sequence[str]) -> list[str]:
    """Each prompt as the only user message of a chat whose next words are the assistant's."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return list(tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False))


def encode_chats(folder: Path, prompts: Sequence[str]) -> list[list[int]]:
    """The token ids of ``render_chats``."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return list(tokenizer(render_chats(folder, prompts), add_special_tokens=False).input_ids)
