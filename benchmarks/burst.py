"""``python3 -m benchmarks.burst``: every arm under load that changes.

Steps the real scheduler in this process; requests arrive by the clock, the same ones for every arm.
The arms ``static`` and ``toggle_*`` are one engine: held in SPEC, or under the threshold policy.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from benchmarks import trace
from benchmarks.results import save_json
from benchmarks.stepped_options import add_engine_options, engine_provenance, prepare_engine
from benchmarks.stepping import SteppedServer

ARMS = ("none", "static", "adaptive", "toggle_eager", "toggle_deferred")
SCHEMA = (
    "arms.<arm>.<trace>: output_tok_s from the first arrival to the last token; tpot: per request, "
    "(last - first result) / tokens between; goodput_req_s: requests/s whose time per token is "
    "within deadline_ms; switches: of the mode; timeline: per bin of bin_s, tokens/s and requests "
    "in the server"
)


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    wanted = chosen.arms.split(",")
    unknown = sorted(set(wanted) - set(ARMS))
    if unknown:
        print(f"burst: error: unknown arm {unknown[0]!r}; known: {ARMS}", file=sys.stderr)
        return 2
    models = prepare_engine(chosen)
    results: dict[str, Any] = {}
    tokens = chosen.input_len + chosen.output_len
    shared: SteppedServer | None = None
    for arm in wanted:
        is_shared = arm not in ("none", "adaptive")
        if shared is not None and not is_shared:
            shared.close()
            shared = None
        spec = "none" if arm == "none" else chosen.spec
        shape = (models, spec, chosen.attention, chosen.largest, tokens)
        if arm == "adaptive":  # upstream's own, in the toggle's place
            server = SteppedServer(*shape, sync=None, speculative_adaptive=True)
        else:
            server = shared or SteppedServer(*shape)
        results[arm] = {name: _serve(server, arm, name, chosen) for name in chosen.traces}
        if is_shared:
            shared = server
        else:
            server.close()
    _print_table(results)
    _save(chosen, models, results)
    return 0


def make_rate(name: str, chosen: argparse.Namespace) -> trace.Rate:
    low, high = chosen.low, chosen.high
    if name == "burst":
        return trace.burst(low, high, chosen.period)
    if name == "ramp":
        return trace.ramp(low, high, chosen.seconds)
    return trace.steady((low + high) / 2)


def _serve(server: SteppedServer, arm: str, name: str, chosen: argparse.Namespace) -> Any:
    from spec_toggle.policy import ThresholdPolicy

    times = trace.arrivals(make_rate(name, chosen), chosen.seconds, chosen.seed)
    requests = server.random_requests(len(times), chosen.input_len, chosen.output_len)
    warm_up = server.random_requests(min(48, len(times)), chosen.input_len, 32)
    script = (lambda _: False) if arm == "static" else None
    if arm.startswith("toggle_"):
        server.use_sync(arm.removeprefix("toggle_"), chosen.sync_tokens)
    for phase in (warm_up, requests):
        if arm.startswith("toggle_"):
            server.engine.toggle.controller.policy = ThresholdPolicy(
                chosen.threshold, chosen.threshold - chosen.threshold // 8, 16
            )
        before = _switches(server)
        start = time.perf_counter()
        for request, when in zip(phase, times, strict=False):
            request.arrival = when
        served = server.serve(phase, script, lambda _, t0=start: time.perf_counter() - t0)
    measured = trace.summarise(served, chosen.deadline_ms)
    measured["switches"] = _switches(server) - before
    measured["timeline"] = trace.timeline(served)
    print(f"{arm} {name}: {measured['output_tok_s']:.0f} tok/s", flush=True)
    return measured


def _switches(server: SteppedServer) -> int:
    if server.engine.config.sync is None:
        return 0
    return int(server.engine.toggle.controller.totals.switches)


def _print_table(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("output_tok_s", "tpot_ms_p50", "tpot_ms_p99", "goodput_req_s", "switches")
    table = Table("arm", "trace", *columns)
    for arm, traces in results.items():
        for name, measured in traces.items():
            table.add_row(arm, name, *(f"{measured[column]:.2f}" for column in columns))
    Console(width=120).print(table)


def _save(chosen: argparse.Namespace, models: Any, results: dict[str, Any]) -> None:
    provenance = engine_provenance(
        "benchmarks.burst",
        chosen,
        models,
        output_len=chosen.output_len,
        threshold=chosen.threshold,
        deadline_ms=chosen.deadline_ms,
        load={name: getattr(chosen, name) for name in ("low", "high", "period", "seconds", "seed")},
    )
    path = save_json(
        chosen.out, "burst", provenance, f"{models.label}-{chosen.spec}", SCHEMA, results
    )
    print(f"results: {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--arms", default=",".join(ARMS))
    add("--traces", nargs="+", default=["burst"], choices=("burst", "ramp", "poisson"))
    add("--low", type=float, default=8.0, help="requests/s")
    add("--high", type=float, default=64.0, help="requests/s")
    add("--period", type=float, default=6.0, help="seconds of each load in the trace burst")
    add("--seconds", type=float, default=24.0, help="length of a trace")
    add("--deadline-ms", type=float, default=12.0, help="per output token, for goodput")
    add("--threshold", type=int, default=24)
    add("--sync-tokens", type=int, default=4096)
    add("--largest", type=int, default=256, help="requests that run together at most")
    add("--output-len", type=int, default=128)
    add("--seed", type=int, default=0)
    add_engine_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
