"""``python3 -m benchmarks.baseline NEW STORED``: has a ratio between arms fallen since STORED?

Only ratios of arms of one run are compared, because absolute figures belong to one machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# Arm, and the arms whose better one it is held against.
RATIOS = (("toggle", ("none", "static")), ("forced_plain_off", ("none",)))


def ratios(document: dict[str, Any]) -> dict[tuple[str, str], float]:
    """(arm, concurrency) to its output tokens/s over the better of the arms it is held against."""
    found = {}
    for arm, others in RATIOS:
        for level, measured in document["arms"].get(arm, {}).get("levels", {}).items():
            rivals = [
                document["arms"].get(other, {}).get("levels", {}).get(level) for other in others
            ]
            if all(rivals):
                best = max(rival["output_tok_s"] for rival in rivals)
                found[arm, level] = measured["output_tok_s"] / best
    return found


def regressions(
    new: dict[str, Any], stored: dict[str, Any], tolerance: float
) -> tuple[list[str], int]:
    """What fell by more than ``tolerance``, and how many ratios could be compared."""
    before, after = ratios(stored), ratios(new)
    shared = sorted(before.keys() & after.keys())
    fallen = [
        f"{arm} at {level}: {after[arm, level]:.3f}, stored {before[arm, level]:.3f}"
        for arm, level in shared
        if after[arm, level] < before[arm, level] - tolerance
    ]
    return fallen, len(shared)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("new", type=Path)
    parser.add_argument("stored", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.03)
    chosen = parser.parse_args(argv)
    new, stored = (json.loads(path.read_text()) for path in (chosen.new, chosen.stored))
    fallen, compared = regressions(new, stored, chosen.tolerance)
    if not compared:
        print("baseline: the two results share no ratio to compare", file=sys.stderr)
        return 1
    print("\n".join(fallen) or f"baseline: {compared} ratios hold within {chosen.tolerance}")
    return 1 if fallen else 0


if __name__ == "__main__":
    raise SystemExit(main())
