"""``python3 -m benchmarks.burst_plot RESULT.json``: load and throughput over time, arm by arm."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def plot(document: dict[str, Any], path: Path) -> None:
    """One column per trace; above, requests in the server; below, output tokens/s."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    arms = document["arms"]
    traces = list(next(iter(arms.values())))
    size = (6 * len(traces), 6)
    figure, grid = pyplot.subplots(2, len(traces), figsize=size, sharex="col", squeeze=False)
    for column, name in enumerate(traces):
        load, speed = grid[0][column], grid[1][column]
        for arm, measured in arms.items():
            line = measured[name]["timeline"]
            seconds = [line["bin_s"][0] * index for index in range(len(line["requests"]))]
            load.plot(seconds, line["requests"], label=arm)
            rate = measured[name]["output_tok_s"]
            speed.plot(seconds, line["output_tok_s"], label=f"{arm}: {rate:.0f} on average")
        threshold = document["provenance"]["threshold"]
        load.axhline(threshold, color="grey", linestyle=":", label=f"threshold {threshold}")
        load.set(title=name, ylabel="requests in the server")
        speed.set(xlabel="s", ylabel="output tokens/s")
        load.legend(fontsize="small")
        speed.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    chosen = parser.parse_args(argv)
    try:
        document = json.loads(chosen.result.read_text())
    except (OSError, ValueError) as error:
        print(f"burst_plot: error: {chosen.result}: {error}", file=sys.stderr)
        return 2
    if document.get("benchmark") != "burst":
        print(f"burst_plot: error: {chosen.result} is not a result of burst", file=sys.stderr)
        return 2
    path = chosen.result.with_suffix(".png")
    plot(document, path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
