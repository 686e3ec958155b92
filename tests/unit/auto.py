"""A table with the shape of a GPU's, and policies over it, for the tests of ``auto``."""

from __future__ import annotations

from spec_toggle.acceptance import AcceptEstimate, ProbeSchedule
from spec_toggle.cost import CostTable
from spec_toggle.goodput import GoodputPolicy
from spec_toggle.live_costs import LiveCosts, Observations
from spec_toggle.load import LoadSample
from spec_toggle.policy import Mode

SIZES = (1, 4, 16, 64, 256)


def table(count: int = 1) -> CostTable:
    """At short contexts rounds cost 1.5 to 6 plain steps; at long ones 1.3 to 2."""
    plain = ((5.0, 5.0, 5.5, 7.0, 15.0), (5.5, 6.5, 12.5, 40.0, 150.0))
    rounds = ((7.5, 7.5, 10.0, 24.0, 90.0), (7.5, 9.2, 18.0, 64.0, 300.0))
    counts = ((count,) * len(SIZES),) * 2
    return CostTable(SIZES, (256, 32768), plain, rounds, counts, counts)


def observations(costs: CostTable | None = None, accept: float = 2.5) -> Observations:
    live = LiveCosts(costs or table(), None, lambda timings: timings)
    return Observations(live, AcceptEstimate(prior=accept), max_accept=4.0)


def policy(
    watched: Observations, margin: float = 0.02, dwell: int = 3, probes: ProbeSchedule | None = None
) -> GoodputPolicy:
    return GoodputPolicy(watched, margin, dwell, probes)


def load(batch_size: int, context: int = 256, queue: int = 0, kv: float = 0.0) -> LoadSample:
    return LoadSample(batch_size, queue, batch_size * context, kv)


def teach(watched: Observations, accept: float, rounds: int = 4000) -> None:
    """Observe ``rounds`` rounds of one request, in results of ten requests."""
    for _ in range(rounds // 10):
        watched.result(Mode.SPEC, 10, 10, round(10 * accept), 0)
