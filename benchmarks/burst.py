"""``python3 -m benchmarks.burst``: every arm under load that changes.

Steps the real scheduler in this process; requests arrive by the clock, the same ones for every arm.
The arms ``static``, ``toggle_*`` and ``auto`` are one engine: held in SPEC, under the threshold
policy with that draft sync, or under the policy ``auto``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import trace
from benchmarks.models import ModelPair
from benchmarks.results import save_json
from benchmarks.stepped_options import (
    add_engine_options,
    arms_of,
    engine_provenance,
    prepare_engine,
)
from benchmarks.stepping import SteppedServer, change_simulated_accept

ARMS = ("none", "static", "toggle_eager", "toggle_deferred", "auto", "adaptive")
OWN_ENGINE = ("none", "adaptive")
SCHEMA = (
    "arms.<arm>.<trace>: output_tok_s from the first arrival to the last token; tpot: per request, "
    "(last - first result) / tokens between; goodput_req_s: requests/s whose time per token is "
    "within deadline_ms; switches: of the mode; timeline: per bin of bin_s, tokens/s and requests "
    "in the server"
)


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    models = prepare_engine(chosen)
    results: dict[str, Any] = {}
    kinds = itertools.groupby(chosen.arms, lambda arm: arm if arm in OWN_ENGINE else "toggle")
    for kind, arms in kinds:
        server = _server(kind, models, chosen)
        if chosen.accept:
            change_simulated_accept(chosen.accept)
        for arm in arms:
            results[arm] = {name: _serve(server, arm, name, chosen) for name in chosen.traces}
            path = _save(chosen, models, results)  # after every arm: a later one may fail
        server.close()
    _print_table(results)
    print(f"results: {path}")
    return 0


def _server(kind: str, models: ModelPair, chosen: argparse.Namespace) -> SteppedServer:
    tokens = chosen.input_len + chosen.output_len
    spec = "none" if kind == "none" else chosen.spec
    settings: dict[str, Any] = {"sync": None}
    if kind == "toggle":
        settings = {"sync": "deferred", "dynamic_spec_policy": "auto"}
    elif kind == "adaptive":
        settings["speculative_adaptive"] = True
    return SteppedServer(
        models,
        spec,
        chosen.attention,
        chosen.largest,
        tokens,
        # Most prefills are of one request, and without graphs they wait for the host.
        prefill_graphs=True,
        **settings,
    )


def make_rate(name: str, chosen: argparse.Namespace) -> trace.Rate:
    low, high = chosen.low, chosen.high
    if name == "burst":
        return trace.burst(low, high, chosen.period)
    if name == "ramp":
        return trace.ramp(low, high, chosen.seconds)
    return trace.steady((low + high) / 2)


def _serve(server: SteppedServer, arm: str, name: str, chosen: argparse.Namespace) -> Any:
    times = trace.arrivals(make_rate(name, chosen), chosen.seconds, chosen.seed)
    requests = server.random_requests(len(times), chosen.input_len, chosen.output_len)
    warm_up = server.random_requests(min(48, len(times)), chosen.input_len, 32)
    for phase in (warm_up, requests):
        if arm not in OWN_ENGINE:
            _set_policy(server, arm, chosen)
        before = _switches(server)
        start = time.perf_counter()
        for request, when in zip(phase, times, strict=False):
            request.arrival = when

        def clock(_: int, start: float = start) -> float:
            return time.perf_counter() - start

        served = server.serve(phase, None, clock)
    measured = trace.summarise(served, chosen.deadline_ms)
    measured["switches"] = _switches(server) - before
    measured["timeline"] = trace.timeline(served)
    print(f"{arm} {name}: {measured['output_tok_s']:.0f} tok/s", flush=True)
    return measured


def _set_policy(server: SteppedServer, arm: str, chosen: argparse.Namespace) -> None:
    server.use_sync("eager" if arm == "toggle_eager" else "deferred", chosen.sync_tokens)
    policy = {"static": "spec", "auto": "auto"}.get(arm, "threshold")
    server.use_policy(policy, chosen.threshold)


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


def _save(chosen: argparse.Namespace, models: ModelPair, results: dict[str, Any]) -> Path:
    provenance = engine_provenance(
        "benchmarks.burst",
        chosen,
        models,
        output_len=chosen.output_len,
        threshold=chosen.threshold,
        deadline_ms=chosen.deadline_ms,
        load={name: getattr(chosen, name) for name in ("low", "high", "period", "seconds", "seed")},
    )
    name = f"{models.label}-{chosen.spec}"
    return save_json(chosen.out, "burst", provenance, name, SCHEMA, results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--arms", type=arms_of(ARMS), default=",".join(ARMS))
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
