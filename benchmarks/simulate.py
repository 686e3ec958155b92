"""``python3 -m benchmarks.simulate``: policies on traces, with their regret against an oracle.

No server runs. Iterations take what a profile of the policy ``auto`` says, by default one of an
H200; requests join at the next iteration, and prefills cost nothing. The regret of an iteration
is the time it takes beyond what the better mode takes for the same tokens at the same load.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.traces import Trace, synthetic
from spec_toggle.acceptance import AcceptEstimate
from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.cost import CostTable, Grid
from spec_toggle.live_costs import IterationTimer, LiveCosts, Observations
from spec_toggle.load import LoadSample
from spec_toggle.policy import Decision, Mode
from spec_toggle.profile_store import read_profile

RESULTS = Path(__file__).parent / "results"
MEASURED = RESULTS / "profile-0.5.23-h200-triton-dummy-8b-chain.json"
MAX_RUNNING = 256
MAX_ACCEPT = 4.0


class FixedPolicy:
    boundary = None

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def expects_plain(self, sample: LoadSample) -> bool:
        return False  # prefills cost nothing here

    def decide(self, sample: LoadSample) -> Decision:
        return Decision(self._mode, "fixed")

    def configure(self, config: DynamicSpecConfig) -> None: ...


@dataclass
class Outcome:
    """``points``: (ms, ms lost so far), for the plot."""

    total_ms: float = 0.0
    lost_ms: float = 0.0
    tokens: int = 0
    iterations: int = 0
    rounds: int = 0
    switches: int = 0
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def regret(self) -> float:
        return self.lost_ms / max(1e-9, self.total_ms - self.lost_ms)

    def to_document(self) -> dict[str, Any]:
        return {
            "regret": round(self.regret, 5),
            "output_tok_s": round(1000 * self.tokens / max(1e-9, self.total_ms), 1),
            "busy_ms": round(self.total_ms, 1),
            "iterations": self.iterations,
            "rounds": self.rounds,
            "switches": self.switches,
        }


class Simulation:
    """One policy on one trace. ``now_ms`` is the clock that a controller may time with."""

    def __init__(self, trace: Trace, truth: CostTable, seed: int) -> None:
        self.now_ms = 0.0
        self.outcome = Outcome()
        self._trace = trace
        self._truth = truth
        self._rng = random.Random(seed)
        self._waiting = list(reversed(trace.arrivals))
        self._running: list[list[int]] = []  # [context, tokens left]

    def run(self, controller: Controller) -> Outcome:
        while self._waiting or self._running:
            self._admit()
            if self._running:
                self._iterate(controller)
            else:
                self.now_ms = self._waiting[-1].at_ms
                controller.idle()
        self.outcome.switches = controller.totals.switches
        return self.outcome

    def _admit(self) -> None:
        while self._waiting and self._waiting[-1].at_ms <= self.now_ms:
            if len(self._running) == MAX_RUNNING:
                return
            arrival = self._waiting.pop()
            self._running.append([arrival.input_len, arrival.output_len])

    def _iterate(self, controller: Controller) -> None:
        size = len(self._running)
        context = sum(request[0] for request in self._running)
        mode = controller.begin_iteration(LoadSample(size, 0, context))
        accept = self._trace.accept_at(self.now_ms)
        ms = self._truth.ms(mode, size, context / size)
        self._account(mode, ms, accept / self._truth.break_even(size, context / size))
        self.now_ms += ms * self._rng.uniform(0.97, 1.03)
        tokens = 0
        for request in self._running:
            got = self._draw(accept) if mode is Mode.SPEC else 1
            request[0] += got
            request[1] -= got
            tokens += got
        self.outcome.tokens += tokens
        if controller.observations is not None:
            forward = self.outcome.iterations
            controller.observations.result(mode, size, size, tokens, forward)
        self._running = [request for request in self._running if request[1] > 0]

    def _account(self, mode: Mode, ms: float, gain: float) -> None:
        outcome = self.outcome
        share = max(0.0, 1 - (gain if mode is Mode.SPEC else 1 / gain))
        outcome.total_ms += ms
        outcome.lost_ms += ms * share
        outcome.iterations += 1
        outcome.rounds += mode is Mode.SPEC
        outcome.points.append((self.now_ms, outcome.lost_ms))

    def _draw(self, accept: float) -> int:
        return int(accept) + (self._rng.random() < accept % 1)


def distorted(table: CostTable, share: float, seed: int) -> CostTable:
    """The table a server might believe: each cell wrong by up to ``share``."""
    rng = random.Random(seed)

    def wrong(grid: Grid) -> Grid:
        return tuple(tuple(ms * (1 + rng.uniform(-share, share)) for ms in row) for row in grid)

    return replace(table, plain_ms=wrong(table.plain_ms), round_ms=wrong(table.round_ms))


def make_controller(name: str, believed: CostTable, clock: Callable[[], float]) -> Controller:
    """``spec``, ``plain``, ``threshold-N`` or ``auto``."""
    if name in ("spec", "plain"):
        return Controller(FixedPolicy(Mode(name)), DynamicSpecConfig())
    if name != "auto":
        return Controller.from_config(DynamicSpecConfig(threshold=int(name.split("-")[1])))
    costs = LiveCosts(believed, IterationTimer(clock), lambda timings: timings)
    watched = Observations(costs, AcceptEstimate(prior=2.5), MAX_ACCEPT)
    return Controller.from_config(DynamicSpecConfig(policy="auto"), None, watched)


def simulate(name: str, trace: Trace, truth: CostTable, believed: CostTable, seed: int) -> Outcome:
    simulation = Simulation(trace, truth, seed)
    return simulation.run(make_controller(name, believed, lambda: simulation.now_ms / 1000))


def plot(outcomes: dict[str, dict[str, Outcome]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(outcomes), figsize=(4 * len(outcomes), 3.2))
    for panel, (trace, by_policy) in zip(axes, outcomes.items(), strict=True):
        for name, outcome in by_policy.items():
            seconds, lost = zip(*outcome.points[::20], strict=True)
            panel.plot([s / 1000 for s in seconds], [ms / 1000 for ms in lost], label=name)
        panel.set_title(trace, fontsize=9)
        panel.set_xlabel("s")
        panel.set_yscale("symlog", linthresh=0.1)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("s lost against the oracle")
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--costs", type=Path, default=MEASURED, help="saved profile")
    parser.add_argument("--trace", type=Path, nargs="*", default=[], help="recorded traces, JSON")
    parser.add_argument("--policies", default="spec,plain,threshold-24,threshold-32,auto")
    parser.add_argument("--seconds", type=float, default=120, help="length of synthetic traces")
    parser.add_argument("--table-error", type=float, default=0.1, help="of what auto believes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write PATH.json and PATH.png")
    given = parser.parse_args(argv)
    truth = read_profile(given.costs).table
    believed = distorted(truth, given.table_error, given.seed)
    traces = [Trace.read(path) for path in given.trace] or synthetic(given.seconds, given.seed)
    outcomes: dict[str, dict[str, Outcome]] = {}
    for trace in traces:
        outcomes[trace.name] = {
            name: simulate(name, trace, truth, believed, given.seed)
            for name in given.policies.split(",")
        }
        shown = (f"{name} {100 * o.regret:.2f} %" for name, o in outcomes[trace.name].items())
        print(f"{trace.name}: regret {', '.join(shown)}")
    if given.out is not None:
        write(outcomes, given)
    return 0


def write(outcomes: dict[str, dict[str, Outcome]], given: argparse.Namespace) -> None:
    document = {
        "benchmark": "simulate",
        "schema": "arms.<trace>.<policy>.regret: time lost over the time the oracle would take",
        "provenance": {
            "costs": given.costs.name,
            "seconds": given.seconds,
            "table_error": given.table_error,
            "seed": given.seed,
        },
        "arms": {
            trace: {name: outcome.to_document() for name, outcome in by_policy.items()}
            for trace, by_policy in outcomes.items()
        },
    }
    given.out.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")
    plot(outcomes, given.out.with_suffix(".png"))


if __name__ == "__main__":
    raise SystemExit(main())
