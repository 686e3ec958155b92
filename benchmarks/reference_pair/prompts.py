"""Training and held-out prompts, composed from the templates and topics of ``prompts.toml``."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("prompts.toml")


def training_prompts(seed: int) -> list[str]:
    """Every training template with every training topic of its kind, shuffled."""
    prompts = [
        template.format(topic)
        for kind in _kinds().values()
        for template in kind["templates"]
        for topic in kind["topics"].split("; ")
    ]
    random.Random(f"training-{seed}").shuffle(prompts)
    return prompts


def held_out_prompts() -> list[str]:
    """Prompts whose template and topic both occur in no training prompt.

    Always in the same order, the kinds taking turns: the first ``n`` are a fair sample.
    """
    by_kind = []
    for name, kind in _kinds().items():
        topics = kind["held_out_topics"].split("; ")
        prompts = [t.format(topic) for t in kind["held_out_templates"] for topic in topics]
        random.Random(f"held-out-{name}").shuffle(prompts)
        by_kind.append(prompts)
    longest = max(len(prompts) for prompts in by_kind)
    return [prompts[i] for i in range(longest) for prompts in by_kind if i < len(prompts)]


def _kinds() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
