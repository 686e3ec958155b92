"""Timing on one rank, decisions on all."""

import dataclasses
import random
from collections import deque
from collections.abc import Callable

import pytest

from spec_toggle.acceptance import AcceptEstimate
from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.cost import CostTable, Timing, prior_table
from spec_toggle.live_costs import IterationTimer, LiveCosts, Observations
from spec_toggle.policy import Mode
from tests.unit.auto import SIZES, load, table


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def feed(timer: IterationTimer, clock: Clock, spans_ms: list[float], **changes: int) -> None:
    timer.result(Mode.PLAIN, 8, 100, 0)
    for index, span in enumerate(spans_ms, start=1):
        clock.now += span / 1000
        timer.result(Mode.PLAIN, changes.get("size", 8), 100, index * changes.get("stride", 1))


def test_time_between_results_is_the_iteration() -> None:
    clock = Clock()
    timer = IterationTimer(clock)
    feed(timer, clock, [5.0] * 6)
    (timing,) = timer.drain()
    assert (timing.mode, timing.batch_size, timing.count) == (Mode.PLAIN, 8, 6)
    assert timing.ms == pytest.approx(5.0)
    assert timer.drain() == []


def test_a_stall_is_left_out_and_a_periodic_cost_is_not() -> None:
    clock = Clock()
    timer = IterationTimer(clock)
    feed(timer, clock, [5.0, 5.0, 5.0, 9.0] * 8 + [500.0])
    (timing,) = timer.drain()
    assert timing.ms == pytest.approx(6.0)


def test_a_prefill_between_or_another_batch_size_is_no_iteration() -> None:
    for changes in ({"stride": 2}, {"size": 9}):
        clock = Clock()
        timer = IterationTimer(clock)
        feed(timer, clock, [5.0] * 3, **changes)
        assert timer.drain() == []


def make_rank(clock: Clock | None, share: object) -> Controller:
    timer = None if clock is None else IterationTimer(clock)
    costs = LiveCosts(prior_table(3, 4, 64), timer, share, interval=64)  # type: ignore[arg-type]
    watched = Observations(costs, AcceptEstimate(prior=2.5), max_accept=4.0)
    return Controller.from_config(DynamicSpecConfig(policy="auto"), None, watched)


def test_two_ranks_with_different_clocks_decide_alike() -> None:
    wire: deque[list[Timing]] = deque()

    def send(timings: list[Timing]) -> list[Timing]:
        wire.append(timings)
        return timings

    clock, rng, truth = Clock(), random.Random(5), table()
    ranks = [make_rank(clock, send), make_rank(None, lambda _: wire.popleft())]
    wrong_clock = make_rank(Clock(), lambda timings: timings)
    size, seen = 4, []
    for step in range(6000):
        if step % 200 == 0:
            size = rng.choice((0, 1, 4, 16, 40, 64))
        if size == 0:
            for rank in (*ranks, wrong_clock):
                rank.idle()
            continue
        modes = [rank.begin_iteration(load(size)) for rank in ranks]
        wrong_clock.begin_iteration(load(size))
        assert modes[0] is modes[1], step
        clock.now += rng.uniform(0.9, 1.1) * truth.ms(modes[0], size, 256) / 1000
        tokens = round(size * rng.uniform(1.5, 3))
        for rank in ranks:
            assert rank.observations is not None
            rank.observations.result(modes[0], size, size, tokens, step)
        seen.append(modes[0])
    first, second = (rank.observations.costs.table for rank in ranks)  # type: ignore[union-attr]
    assert first == second and set(seen) == set(Mode)
    assert first.ms(Mode.SPEC, 4, 256) == pytest.approx(truth.ms(Mode.SPEC, 4, 256), rel=0.2)
    assert not wire


def corrections(costs: CostTable, run: Callable[[LiveCosts, int], None]) -> list[int]:
    """Iterations of 1 to 2000 in which ``run``, called with each, made a correction."""
    found: list[int] = []
    step = 0

    def share(timings: list[Timing]) -> list[Timing]:
        found.append(step)
        return timings

    live = LiveCosts(costs, None, share)
    for step in range(1, 2001):
        run(live, step)
    return found


def test_corrections_come_soon_at_first_and_when_something_was_timed() -> None:
    def run(live: LiveCosts, step: int) -> None:
        if step == 1000:
            live.correct_soon()
        live.begin_iteration(Mode.PLAIN, 1, 256)

    # Doubling, or after 2500 ms, of 5 ms each.
    assert corrections(table(), run) == [64, 192, 448, 948, 1003, 1503]


def test_a_load_that_nobody_measured_is_read_soon() -> None:
    def run(live: LiveCosts, step: int) -> None:
        live.begin_iteration(Mode.SPEC, 1 if step < 1000 else 256, 256)

    counts = tuple(tuple(int(size < 64) for size in SIZES) for _ in range(2))
    found = corrections(dataclasses.replace(table(), round_count=counts), run)
    assert [step for step in found if 1000 <= step < 1100] == [1007, 1015, 1031, 1059, 1087]


def test_few_timings_wait_for_more() -> None:
    clock = Clock()
    timer = IterationTimer(clock)
    feed(timer, clock, [5.0] * 2)
    assert timer.drain() == []
    feed(timer, clock, [5.0] * 3)
    (timing,) = timer.drain()
    assert timing.count >= 4
