"""``python3 -m benchmarks.envelope``: throughput of every arm over concurrency, on one machine.

The question: does the toggle follow the better of "no speculation" and "static EAGLE-3" at every
load? Rerunning a command resumes it: measured levels are skipped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from benchmarks.arms import ARMS, SPECULATIONS, Setup, arm_flags, check_arm
from benchmarks.models import DUMMY_NAMES, PAIRS, resolve_models, resolve_pair
from benchmarks.plan import Budget
from benchmarks.results import ResultFile, file_name, make_provenance
from benchmarks.session import Options, Session

LEVELS = "1,4,16,32,64,128,256"
DUMMY_ACCEPT = 2.6
_ACCEPT_HELP = f"Default: {DUMMY_ACCEPT}, and 0 with --pair"


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    budget = Budget(arguments.time_budget)
    signal.signal(signal.SIGTERM, _on_sigterm)
    arms = [arm for arm in arguments.arms.split(",") if arm]
    try:
        setup = make_setup(arguments)
        for arm in arms:
            check_arm(arm, setup)
        provenance = make_provenance(setup)
        name = file_name(setup, provenance["sglang"], provenance["gpu"])
        results = ResultFile(arguments.out / name, provenance, fresh=arguments.fresh)
        for arm in arms:
            results.claim(arm, arm_flags(arm, setup))
    except ValueError as error:
        print(f"envelope: error: {error}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"results: {results.path}", flush=True)
    with Session(setup, make_options(arguments), results, budget) as session:
        session.run(arms)
    _print_left(results, arms, setup.levels, budget)
    return 1 if session.has_errors else 0


def _print_left(
    results: ResultFile, arms: list[str], levels: tuple[int, ...], budget: Budget
) -> None:
    print(f"took {budget.elapsed_s:.0f} s", flush=True)
    for arm in arms:
        left = results.missing(arm, levels)
        if left:
            print(f"left for the next run of this command: {arm} at {left}", flush=True)


def _on_sigterm(*_: object) -> NoReturn:
    raise SystemExit(143)  # unwinds through Session, which stops the servers


def make_setup(arguments: argparse.Namespace) -> Setup:
    if arguments.pair is not None:
        models = resolve_pair(arguments.pair)
    else:
        models = resolve_models(arguments.model, arguments.draft, arguments.model_dir)
    # A draft that was trained has an acceptance of its own on real prompts.
    accept = arguments.accept
    if accept is None:
        accept = 0.0 if models.prompts else DUMMY_ACCEPT
    return Setup(
        models=models,
        device=arguments.device,
        attention=arguments.attention,
        spec=arguments.spec,
        accept=accept,
        threshold=arguments.threshold,
        sync=arguments.sync,
        input_len=max(map(len, models.prompts), default=arguments.input_len),
        output_len=arguments.output_len,
        levels=tuple(sorted({int(level) for level in arguments.levels.split(",")})),
        extra=tuple(arguments.server_args.split()),
    )


def make_options(arguments: argparse.Namespace) -> Options:
    return Options(
        parallel=arguments.parallel_starts,
        seconds=arguments.seconds,
        waves=arguments.waves,
        start_estimate_s=arguments.start_estimate,
        start_timeout_s=arguments.start_timeout,
        level_timeout_s=arguments.level_timeout,
        base_port=arguments.port,
        seed=arguments.seed,
        log_dir=arguments.out,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.envelope", description=__doc__)
    add = parser.add_argument
    add("--arms", default=",".join(ARMS), help="order matters: see --parallel-starts")
    add("--levels", default=LEVELS, help="concurrencies")
    add("--attention", default="triton", choices=("triton", "flashinfer", "fa3", "intel_amx"))
    add("--spec", default="chain", choices=tuple(SPECULATIONS), help="3-1-4, or 3-4-8 with topk 4")
    add("--accept", type=float, help=f"simulated accept length; 0: the draft's own. {_ACCEPT_HELP}")
    add("--threshold", type=int, default=32, help="of the arm 'toggle'")
    add("--sync", default="deferred", help="draft sync of the arm 'toggle'")
    add("--input-len", type=int, default=256)
    add("--output-len", type=int, default=256)
    add("--pair", choices=PAIRS, help="a trained pair on real prompts, instead of --model")
    add("--model", default="dummy-8b", help=f"a folder, or one of {', '.join(DUMMY_NAMES)}")
    add("--draft", help="the EAGLE-3 draft of a real --model")
    models = Path(tempfile.gettempdir()) / "spec-toggle-models"
    add("--model-dir", type=Path, default=models, help="where dummy config.json folders go")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--out", type=Path, default=Path("benchmarks/results"))
    add("--fresh", action="store_true", help="drop what an existing result file holds")
    add("--parallel-starts", type=int, default=1, help="servers that are up together")
    add("--time-budget", type=float, help="stop cleanly before this many seconds")
    add("--seconds", type=float, default=6.0, help="aim for a level of the arm 'none' on an H200")
    add("--waves", type=int, help="requests per worker, instead of --seconds")
    add("--seed", type=int, default=0)
    add("--port", type=int, default=30000)
    add("--server-args", default="", help="further flags of every server, in one string")
    add("--start-estimate", type=float, default=120.0, help="seconds a start is planned with")
    add("--start-timeout", type=float, default=300.0)
    add("--level-timeout", type=float, default=120.0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
