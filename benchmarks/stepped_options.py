"""Command line and provenance that the benchmarks which step the scheduler share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import DUMMY_NAMES, PAIRS, ModelPair, resolve_models, resolve_pair
from benchmarks.results import provenance_of
from benchmarks.stepping import simulate_accept

CPU_ATTENTION = "intel_amx"


def arms_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of argparse: names of arms with commas between them."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown arm {name!r}; known: {', '.join(known)}")
        return names

    return parse


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--input-len", type=int, default=256)
    add("--attention", default="triton", choices=("triton", "flashinfer", "fa3", CPU_ATTENTION))
    add("--spec", default="chain", choices=("chain", "tree"))
    add("--accept", type=float, default=2.6, help="simulated accept length; 0: the draft's own")
    add("--pair", choices=PAIRS, help="a trained pair on real prompts, instead of --model")
    add("--model", default="dummy-8b", help=f"a folder, or one of {', '.join(DUMMY_NAMES)}")
    add("--draft", help="the EAGLE-3 draft of a real --model")
    add("--model-dir", type=Path, default=Path(tempfile.gettempdir()) / "spec-toggle-models")
    add("--out", type=Path, default=Path("benchmarks/results"))


def prepare_engine(chosen: argparse.Namespace) -> ModelPair:
    """The models to serve, with the environment set for them; before SGLang is imported."""
    if chosen.pair is not None:
        models = resolve_pair(chosen.pair)
        chosen.accept = 0.0  # its own, on prompts of its own
    else:
        models = resolve_models(chosen.model, chosen.draft, chosen.model_dir)
    simulate_accept(chosen.accept)
    if chosen.attention == CPU_ATTENTION:
        from tests.engine.harness import activate_reference_engine

        activate_reference_engine()
    return models


def engine_provenance(
    module: str, chosen: argparse.Namespace, models: ModelPair, **more: Any
) -> dict[str, Any]:
    return provenance_of(
        module,
        device="cpu" if chosen.attention == CPU_ATTENTION else "cuda",
        attention_backend=chosen.attention,
        model=models.label,
        draft=models.draft.name,
        spec=chosen.spec,
        simulated_accept=chosen.accept or None,
        input_len=chosen.input_len,
        **more,
    )
