"""``auto``: step tables, and properties over random loads."""

import itertools
import random

import pytest

from spec_toggle.acceptance import AcceptEstimate, ProbeSchedule
from spec_toggle.cost import prior_table
from spec_toggle.policy import Mode
from tests.unit.auto import load, observations, policy, table, teach

S, P = Mode.SPEC, Mode.PLAIN


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # (batch size, context); accept length 2.5, dwell 3
        ([(1, 256), (16, 256), (64, 256), (64, 256)], [S, S, P, P]),
        ([(64, 256), (4, 256), (4, 256), (4, 256)], [P, P, P, S]),
        ([(64, 256), (4, 256), (4, 256), (64, 256), (4, 256)], [P, P, P, P, P]),  # start over
        ([(64, 256), (0, 256), (4, 256)], [P, S, S]),  # idle
        ([(256, 256), (256, 32768), (256, 32768), (256, 32768)], [P, P, P, S]),  # by context alone
    ],
)
def test_step_table(steps: list[tuple[int, int]], expected: list[Mode]) -> None:
    watched = observations()
    teach(watched, 2.5)
    decider = policy(watched)
    assert [decider.decide(load(*step)).mode for step in steps] == expected


def reason_after(before: tuple[int, int, float], after: tuple[int, int, float]) -> str:
    """The reason of the switch when the load and the accept length change."""
    watched = observations()
    decider = policy(watched, dwell=1)
    reasons = []
    for size, context, accept in (before, after):
        teach(watched, accept)
        reasons += [decider.decide(load(size, context)).reason for _ in range(4)]
    return next(reason for reason in reasons[4:] if "tokens in" in reason)


def test_reasons_name_the_input_that_decided() -> None:
    assert reason_after((4, 256, 2.5), (64, 256, 2.5)).startswith("batch size 64: gain 0.7")
    assert reason_after((4, 256, 2.5), (4, 256, 1.2)).startswith("accept length 1.22: gain 0.81")
    assert reason_after((256, 32768, 2.5), (256, 256, 2.5)).startswith("context 256: gain 0.4")
    text = reason_after((64, 256, 2.5), (16, 256, 2.5))
    assert text == ("batch size 16: gain 1.38, 2.50 tokens in 10.00 ms against 1 in 5.50 ms")


@pytest.mark.parametrize(
    ("sample", "part"),
    [(load(4, queue=7), "(queue 7)"), (load(4, kv=0.97), "(KV pool 97% full)")],
)
def test_pressure_doubles_the_dwell(sample: object, part: str) -> None:
    watched = observations()
    teach(watched, 2.5)
    decider = policy(watched)
    decider.decide(load(64))
    seen = [decider.decide(sample) for _ in range(6)]  # type: ignore[arg-type]
    assert [d.mode for d in seen] == [P] * 5 + [S]
    assert seen[0].reason == f"dwell 1 of 6 {part}"


def test_an_old_estimate_is_renewed_by_a_probe() -> None:
    watched = observations()
    teach(watched, 1.5)
    decider = policy(watched)
    modes = [decider.decide(load(16)).mode for _ in range(5000)]
    start = modes.index(S)
    assert modes[start : start + 9] == [S] * 8 + [P]  # a probe that saw nothing
    assert set(modes[:start]) == {P} and start > 512


def test_a_probe_that_finds_more_acceptance_stays() -> None:
    watched = observations(accept=1.5)
    teach(watched, 1.2)
    decider = policy(watched)
    switched = None
    for _ in range(8000):
        decision = decider.decide(load(16))
        if decision.mode is S:
            watched.result(S, 16, 16, 48, 0)
        switched = decision
    assert switched is not None and switched.mode is S
    assert watched.accept.value == pytest.approx(3.0, rel=0.02)


def test_no_probe_where_full_acceptance_would_not_pay() -> None:
    watched = observations()
    teach(watched, 2.0)
    decider = policy(watched)
    assert {decider.decide(load(256)).mode for _ in range(20000)} == {P}


@pytest.mark.parametrize("accept", [1.0, 1.4, 1.7])
def test_probes_take_less_than_a_hundredth_and_back_off(accept: float) -> None:
    watched = observations()
    teach(watched, accept)
    decider = policy(watched)
    rng = random.Random(4)
    starts, previous = [], S
    for step in range(120_000):
        mode = decider.decide(load(16)).mode
        if mode is S:
            tokens = sum(1 + (rng.random() < accept - 1) for _ in range(16))
            watched.result(S, 16, 16, tokens, 0)
            if previous is P:
                starts.append(step)
        previous = mode
    assert 2 <= len(starts) * 8 <= 120_000 / 100
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert starts[0] < 1100 and min(gaps) >= 2048


def test_a_smaller_batch_ends_the_backing_off() -> None:
    watched = observations()
    teach(watched, 1.2)
    decider = policy(watched)
    vain = [step for step in range(40_000) if decider.decide(load(64)).mode is S]
    assert len(vain) <= 40_000 / 200
    while decider.decide(load(64)).mode is P:
        pass
    waits = [decider.decide(load(4)).mode for _ in range(1100)]
    assert S in waits[8:], "the next probe comes after the shorter wait"


def test_more_acceptance_or_a_smaller_batch_never_turns_speculation_off() -> None:
    def first(size: int, context: int, accept: float) -> bool:
        watched = observations()
        teach(watched, accept, rounds=600)
        return policy(watched).decide(load(size, context)).mode is S

    rng = random.Random(2)
    for _ in range(200):
        size, context, accept = rng.randint(2, 256), rng.randint(1, 40000), rng.uniform(1, 3.8)
        if first(size, context, accept):
            assert first(size, context, accept + 0.2)
            assert first(rng.randint(1, size - 1), context, accept)


def test_no_flapping_on_noise_around_the_break_even() -> None:
    rng = random.Random(7)
    for mean in (1.7, 1.8, 1.85, 1.9, 2.0):
        watched = observations(accept=mean)
        decider = policy(watched, dwell=16)
        modes = []
        for _ in range(20_000):
            modes.append(decider.decide(load(rng.choice((15, 16, 17)))).mode)
            if modes[-1] is S:
                tokens = sum(rng.choice((mean - 0.7, mean + 0.7)) for _ in range(16))
                watched.result(S, 16, 16, round(tokens), 0)
        switches = sum(a is not b for a, b in itertools.pairwise(modes))
        assert switches <= 40, f"{switches} switches at accept length {mean}"


def test_unmeasured_costs_are_measured_by_one_probe_each() -> None:
    watched = observations(prior_table(3, 4, 64))
    teach(watched, 2.5)
    decider = policy(watched, probes=ProbeSchedule(first=50))
    decisions = [decider.decide(load(4)) for _ in range(100)]
    assert decisions[49].reason == "probe: PLAIN was never timed at this load"
    assert [d.mode for d in decisions] == [S] * 49 + [P] * 8 + [S] * 43


def test_estimates_forget_and_age_to_the_prior() -> None:
    estimate = AcceptEstimate(prior=2.0)
    assert estimate.value == 2.0
    for _ in range(200):
        estimate.observe(10, 40)
    assert estimate.value == pytest.approx(4.0, rel=0.02)
    for _ in range(400):
        estimate.observe(10, 10)
    assert estimate.value == pytest.approx(1.0, rel=0.05)
    for _ in range(20_000):
        estimate.age()
    assert estimate.value == pytest.approx(2.0, rel=0.01)
    assert estimate.weight < 1


def test_a_forced_flap_of_the_load_switches_at_most_once_per_dwell() -> None:
    watched = observations()
    teach(watched, 2.5)
    decider = policy(watched, dwell=10)
    modes = [decider.decide(load(4 if step % 11 else 64)).mode for step in range(2000)]
    assert sum(a is not b for a, b in itertools.pairwise(modes)) <= 2 * 2000 / 10


def test_the_table_helper_is_what_the_tests_assume() -> None:
    assert table().break_even(16, 256) == pytest.approx(1.818, rel=0.001)
