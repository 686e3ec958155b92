"""``python3 -m benchmarks.campaign STAGE ...``: the GPU tests and stored results, stage by stage.

Every stage is a list of ordinary commands, each with a limit. A stage that fails does not stop the
next; the last lines say what happened. Result files of a stage go to ``--out``.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.arms import PREFILL_SIZES

RESULTS = Path("benchmarks/results")


class Stage(NamedTuple):
    """``commands``: what follows ``python3 -m``; ``limit_s``: of each of them; ``folder``: below
    ``--out``, where the same file name would hold another stage's arms."""

    question: str
    limit_s: int
    commands: tuple[str, ...]
    folder: str = ""


_PREFILL_GRAPHS = f"--cuda-graph-bs-prefill {' '.join(map(str, PREFILL_SIZES))}"
_ARMS = "benchmarks.envelope --arms none,static,toggle --parallel-starts 3 --seconds 4"
_ENVELOPE = f"{_ARMS} --server-args='{_PREFILL_GRAPHS}' --time-budget 560"
_OFF_TAX = (
    f"benchmarks.envelope --parallel-starts 3 --seconds 4 --server-args='{_PREFILL_GRAPHS}' "
    "--arms none,forced_plain_off,forced_plain_deferred,none_again --levels 64,128,256"
)
_GRID_TWICE = (
    "benchmarks.grid --attention flashinfer --arms none,static,auto,static_again --passes 2 "
    "--window-s 1.0"
)
_TENSOR_PARALLEL = f"--server-args='{_PREFILL_GRAPHS} --tp-size 2 --disable-custom-all-reduce'"

STAGES = {
    "tests": Stage(
        "do the GPU tests pass", 590, ("pytest tests/gpu tests/engine/test_sampling.py -q",)
    ),
    "grid": Stage(
        "auto against the better arm, accept 1.6, 2.6 and 3.4; a plain step's tax",
        590,
        ("benchmarks.grid --contexts 256",),
    ),
    "grid-long": Stage(
        "the same at 8k of context",
        590,
        ("benchmarks.grid --contexts 8160 --arms none,static,auto",),
    ),
    "grid-flashinfer": Stage(
        "the same with flashinfer, which compiles its kernels at the first start and whose rounds "
        "scatter: static twice",
        590,
        (f"{_GRID_TWICE} --contexts 256",),
    ),
    "grid-flashinfer-long": Stage(
        "the same at 8k of context",
        590,
        (f"{_GRID_TWICE} --contexts 8160",),
    ),
    "grid-tree": Stage(
        "the same with a tree",
        590,
        ("benchmarks.grid --contexts 256 --spec tree --arms none,static,auto --accepts 2.6",),
    ),
    "burst": Stage(
        "which arm serves load that changes best",
        590,
        ("benchmarks.burst --period 5 --seconds 40",),
    ),
    "drift": Stage(
        "how soon auto follows acceptance that changes",
        300,
        ("benchmarks.drift --levels 16 32",),
    ),
    "envelope": Stage(
        "the toggle against the better arm over HTTP",
        590,
        (f"{_ENVELOPE} --threshold 32",),
    ),
    "envelope-tree": Stage(
        "the same with a tree",
        590,
        (f"{_ENVELOPE} --threshold 16 --spec tree",),
    ),
    "envelope-flashinfer": Stage(
        "the same with flashinfer",
        590,
        (f"{_ENVELOPE} --threshold 96 --attention flashinfer",),
    ),
    "off-tax": Stage(
        "the toggle held in PLAIN against no speculation over HTTP",
        590,
        (f"{_OFF_TAX} --time-budget 560",),
        "off-tax",
    ),
    "off-tax-flashinfer": Stage(
        "the same with flashinfer",
        590,
        (f"{_OFF_TAX} --time-budget 560 --attention flashinfer",),
        "off-tax",
    ),
    "turnover": Stage(
        "requests that come and go without HTTP, and what the device does meanwhile",
        590,
        ("benchmarks.turnover",),
    ),
    "turnover-waves": Stage(
        "the same with flashinfer and requests that end together, as those over HTTP do",
        590,
        ("benchmarks.turnover --waves --levels 128 256 --attention flashinfer",),
    ),
    "draft-sync": Stage(
        "a plain step and a switch with each draft sync; layouts of the log",
        590,
        ("benchmarks.draft_sync --parts tax,switch,layout --steps 160",),
    ),
    "tensor-parallel": Stage(
        "two GPUs: tests, then the toggle over HTTP",
        590,
        (
            "pytest tests/gpu/test_tensor_parallel.py -q",
            f"{_ARMS} --threshold 48 {_TENSOR_PARALLEL} --time-budget 380",
        ),
    ),
}


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    if chosen.list or not chosen.stages:
        for name, stage in STAGES.items():
            print(f"{name:16} {stage.question} (up to {len(stage.commands) * stage.limit_s} s)")
        return 0
    unknown = sorted(set(chosen.stages) - set(STAGES))
    if unknown:
        known = ", ".join(STAGES)
        print(f"campaign: error: unknown stage {unknown[0]!r}; known: {known}", file=sys.stderr)
        return 2
    ended = [
        (command, *_run(command, STAGES[name].limit_s, _options(command, STAGES[name], chosen)))
        for name in chosen.stages
        for command in STAGES[name].commands
    ]
    for command, code, seconds in ended:
        print(f"{'ok' if code == 0 else f'exit {code}':8} {seconds:4.0f} s  {command}")
    return int(any(code != 0 for _, code, _ in ended))


def _options(command: str, stage: Stage, chosen: argparse.Namespace) -> list[str]:
    """Those of the campaign's own that ``command`` takes."""
    options = []
    if command.startswith("benchmarks.") and (chosen.out is not None or stage.folder):
        options += ["--out", str((chosen.out or RESULTS) / stage.folder)]
    if chosen.port is not None and command.startswith("benchmarks.envelope"):
        options += ["--port", str(chosen.port)]
    return options


def _run(command: str, limit_s: int, options: list[str]) -> tuple[int, float]:
    """Exit status (124: over the limit) and duration, s."""
    words = [sys.executable, "-m", *shlex.split(command), *options]
    print(f"+ {shlex.join(words[1:])}", flush=True)
    start = time.monotonic()
    # SIGTERM, so that a benchmark stops its servers.
    process = subprocess.Popen(words)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        code = 124
    return code, time.monotonic() - start


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    parser.add_argument("--list", action="store_true", help="what each stage asks")
    parser.add_argument("--out", type=Path, help=f"instead of {RESULTS}")
    parser.add_argument("--port", type=int, help="first port of servers, for two campaigns at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
