"""``auto`` on steady, interrupted and wandering loads: time lost against the better mode."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.simulate import MEASURED, make_controller
from spec_toggle.cost import CostTable, Grid, prior_table
from spec_toggle.load import LoadSample
from spec_toggle.policy import Mode
from spec_toggle.profile_store import read_profile

H200 = read_profile(MEASURED).table
CONTEXT = 256
Load = Callable[[int], int]


def scaled(plain: float, rounds: float) -> CostTable:
    """The measured table with other times, such as of a larger model."""

    def times(grid: Grid, factor: float) -> Grid:
        return tuple(tuple(ms * factor for ms in row) for row in grid)

    return replace(
        H200, plain_ms=times(H200.plain_ms, plain), round_ms=times(H200.round_ms, rounds)
    )


def regret(
    truth: CostTable, believed: CostTable, load: Load, accept: float, from_s: float = 0.0
) -> float:
    """Share lost in the minute after ``from_s``. ``load``: batch size by iteration, 0: idle."""
    rng = random.Random(1)
    now_ms, total, lost = 0.0, 0.0, 0.0
    controller = make_controller("auto", believed, lambda: now_ms / 1000)
    observations = controller.observations
    assert observations is not None
    iteration = 0
    while now_ms < 1000 * (from_s + 60):
        iteration += 1
        size = load(iteration)
        if size == 0:
            controller.idle()
            now_ms += 300
            continue
        mode = controller.begin_iteration(LoadSample(size, 0, size * CONTEXT))
        ms = truth.ms(mode, size, CONTEXT)
        gain = accept / truth.break_even(size, CONTEXT)
        if now_ms >= 1000 * from_s:
            total += ms
            lost += ms * max(0.0, 1 - (gain if mode is Mode.SPEC else 1 / gain))
        now_ms += ms * rng.uniform(0.97, 1.03)
        drawn = sum(int(accept) + (rng.random() < accept % 1) for _ in range(size))
        observations.result(mode, size, size, drawn if mode is Mode.SPEC else size, iteration)
    return lost / (total - lost)


@pytest.mark.parametrize("slowness", [1, 3, 6])
@pytest.mark.parametrize("accept", [1.0, 1.25, 1.5])
def test_one_request_at_any_acceptance(slowness: float, accept: float) -> None:
    table = scaled(slowness, slowness)
    assert 1.3 < table.break_even(1, CONTEXT) < 1.4
    assert regret(table, table, lambda _: 1, accept) <= 0.016
    one_by_one = regret(table, table, lambda iteration: int(iteration % 61 > 0), accept)
    assert one_by_one <= 0.016


@pytest.mark.parametrize(("rounds", "accept"), [(0.6, 1.63), (1.0, 2.6), (1.6, 3.2)])
def test_costs_that_nobody_measured_are_learnt_while_the_batch_wanders(
    rounds: float, accept: float
) -> None:
    rng, sizes = random.Random(3), [32]

    def load(_: int) -> int:
        sizes[0] = min(48, max(16, sizes[0] + rng.choice((-1, 0, 1))))
        return sizes[0]

    assert regret(scaled(1, rounds), prior_table(3, 4, 256), load, accept, from_s=20) <= 0.04


def test_a_batch_that_dips_for_a_moment() -> None:
    for every in (302, 62):
        lost = regret(H200, H200, lambda i, every=every: 1 if i % every < 2 else 64, 1.6)
        assert lost <= 0.01
