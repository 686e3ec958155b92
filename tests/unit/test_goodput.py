"""``auto``: step tables, and properties over random loads."""

import dataclasses
import itertools
import random

import pytest

from spec_toggle.acceptance import AcceptEstimate, ProbeSchedule
from spec_toggle.cost import prior_table
from spec_toggle.goodput import TRUSTED_ROUNDS
from spec_toggle.policy import PROBE, Mode
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
    assert reason_after((4, 256, 2.5), (4, 256, 1.2)).startswith("accept length 1.20: gain 0.80")
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


def spells(accept: float, size: int, iterations: int) -> list[tuple[Mode, str, int]]:
    """Mode, first reason and length of each spell in one mode, at a steady load."""
    watched = observations()
    teach(watched, accept)
    decider = policy(watched)
    decisions = []
    for _ in range(iterations):
        decisions.append(decider.decide(load(size)))
        if decisions[-1].mode is S:
            watched.result(S, size, size, round(accept * size), 0)
    groups = (list(group) for _, group in itertools.groupby(decisions, lambda d: d.mode))
    return [(group[0].mode, group[0].reason, len(group)) for group in groups]


def test_costs_of_a_start_are_timed_twice_then_an_old_estimate_is_renewed() -> None:
    seen = spells(1.5, 16, 5000)
    bursts = [(reason, length) for mode, reason, length in seen if mode is S]
    assert bursts[:2] == [("probe: to time SPEC at this load", ProbeSchedule.TIMING)] * 2
    assert set(bursts[2:]) == {("probe: accept length 1.50 is too old", 4)}
    pauses_ms = [5.5 * length for mode, _, length in seen[:-1] if mode is P]
    assert pauses_ms[0] > 600 and min(pauses_ms[1:]) > ProbeSchedule.PAUSE_MS


@pytest.mark.parametrize(("size", "rounds"), [(1, 8), (8, 8), (16, 4), (64, 3), (256, 3)])
def test_a_probe_is_as_long_as_it_takes_to_see(size: int, rounds: int) -> None:
    assert ProbeSchedule().rounds(size) == rounds


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


@pytest.mark.parametrize(
    ("size", "accept"), [(1, 1.0), (1, 1.4), (16, 1.0), (16, 1.4), (16, 1.7), (64, 1.0), (64, 3.2)]
)
def test_probes_lose_about_a_hundredth_at_most(accept: float, size: int) -> None:
    watched = observations()
    teach(watched, accept)
    decider = policy(watched)
    break_even, plain_ms = table().break_even(size, 256), table().ms(P, size, 256)
    assert accept < break_even
    rng = random.Random(4)
    lost, bursts, previous = 0.0, 0, S
    for _ in range(60_000):
        mode = decider.decide(load(size)).mode
        if mode is S:
            tokens = sum(int(accept) + (rng.random() < accept % 1) for _ in range(size))
            watched.result(S, size, size, tokens, 0)
            lost += break_even - accept
            bursts += previous is P
        previous = mode
    assert 2 <= bursts <= 60_000 * plain_ms / ProbeSchedule.PAUSE_MS
    assert lost <= 0.013 * 60_000


def test_costs_nobody_measured_are_timed_where_they_could_matter_alone() -> None:
    """A round of a large batch at a long context can take a second."""
    shape = table(count=0)
    slow = tuple(10 * ms for ms in shape.round_ms[0]), shape.round_ms[1]
    watched = observations(dataclasses.replace(shape, round_ms=slow))
    teach(watched, 2.0)
    decider = policy(watched)
    assert {decider.decide(load(256)).mode for _ in range(20_000)} == {P}, "60 plain steps a round"


def test_a_batch_that_grows_ends_the_timing_of_rounds() -> None:
    shape = table(count=0)
    slow = ((7.5, 7.5, 15.0, 240.0, 900.0), shape.round_ms[1])
    watched = observations(dataclasses.replace(shape, round_ms=slow))
    teach(watched, 2.0)
    decider = policy(watched)
    while decider.decide(load(16)).mode is not P:
        pass
    while decider.decide(load(16)).mode is not S:
        pass
    assert decider.decide(load(256)).mode is P


def test_times_of_a_burst_add_up_over_requests_that_are_shorter() -> None:
    watched = observations(table(count=0))
    teach(watched, 2.5)
    decider = policy(watched)
    modes = []
    for step in range(2000):  # requests of three tokens, one at a time
        modes.append(decider.decide(load(1 if step % 4 else 0)).mode)
    bursts = modes.count(P) / ProbeSchedule.LONGEST
    assert 1 <= bursts <= 1 + 2000 * 7.5 / ProbeSchedule.COST_PAUSE_MS


def test_timing_a_mode_loses_about_a_hundredth_at_most() -> None:
    watched = observations(table(count=0))
    teach(watched, 2.0)
    decider = policy(watched)
    modes = [decider.decide(load(64)).mode for _ in range(20_000)]  # break-even 3.4
    lost = modes.count(S) * (table().break_even(64, 256) - 2.0)
    assert 0 < lost <= 0.011 * 20_000


def test_loads_near_the_break_even_are_looked_at_more_often() -> None:
    def wait_ms(size: int) -> float:
        """Before a burst for acceptance, and the first ones are for times."""
        seen = spells(1.2, size, 4000)
        first = next(i for i, (_, reason, _) in enumerate(seen) if "too old" in reason)
        return seen[first - 1][2] * table().ms(P, size, 256)

    assert ProbeSchedule.PAUSE_MS <= wait_ms(4) < wait_ms(64) < 8000


def test_a_load_that_would_pay_by_what_was_last_seen_is_probed_at_once() -> None:
    watched = observations()
    teach(watched, 2.5)
    decider = policy(watched)
    before = [decider.decide(load(256)).mode for _ in range(600)]
    assert before == [P] * 600, "the estimate is too old by now"
    assert decider.decide(load(4)).cause == PROBE


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
        decisions = []
        for _ in range(20_000):
            decisions.append(decider.decide(load(rng.choice((15, 16, 17)))))
            if decisions[-1].mode is S:
                tokens = sum(rng.choice((mean - 0.7, mean + 0.7)) for _ in range(16))
                watched.result(S, 16, 16, round(tokens), 0)
        changes = [b for a, b in itertools.pairwise(decisions) if a.mode is not b.mode]
        probes = sum(decision.cause == PROBE for decision in changes)
        assert probes <= 20_000 * 5.5 / 2000, "one in two seconds"
        assert len(changes) - 2 * probes <= 40, f"{len(changes)} changes at accept length {mean}"


def test_unmeasured_costs_are_measured_by_one_probe_each() -> None:
    watched = observations(prior_table(3, 4, 64))
    teach(watched, 2.5)
    decider = policy(watched, probes=ProbeSchedule(first_ms=50 * 5.0))
    decisions = [decider.decide(load(4)) for _ in range(400)]
    start = next(i for i, decision in enumerate(decisions) if decision.mode is P)
    assert decisions[start].reason == "probe: to time PLAIN at this load"
    assert [d.mode for d in decisions] == [S] * start + [P] * 8 + [S] * (392 - start)


def test_estimates_forget_rounds_and_in_plain_lose_weight_alone() -> None:
    estimate = AcceptEstimate(prior=2.0)
    assert estimate.value == 2.0
    for _ in range(200):
        estimate.observe(10, 40)
    assert estimate.value == pytest.approx(4.0, rel=0.02)
    for _ in range(400):
        estimate.observe(10, 10)
    assert estimate.value == pytest.approx(1.0, rel=0.05)
    assert estimate.weight > TRUSTED_ROUNDS
    for _ in range(20_000):
        estimate.age(5.0)
    assert estimate.value == pytest.approx(1.0, rel=0.05), "a prior would switch on what it assumes"
    assert estimate.weight == AcceptEstimate.LEAST
    estimate.observe(8, 24)
    assert estimate.value == pytest.approx((4 + 24) / 12, rel=0.02)


def test_while_an_operator_forces_a_mode_no_burst_is_made_or_counted() -> None:
    watched = observations()
    teach(watched, 1.5)
    decider = policy(watched)
    before = [decider.decide(load(16)).mode for _ in range(100)]
    forced = dataclasses.replace(load(16), is_forced=True)
    assert {decider.decide(forced).mode for _ in range(2000)} == {P}
    after = [decider.decide(load(16)).cause for _ in range(20)]
    assert set(before) == {P} and PROBE in after, "nothing was learned meanwhile"


def test_a_load_that_dips_for_a_moment_is_not_probed_when_it_is_back() -> None:
    watched = observations()
    teach(watched, 1.6)
    decider = policy(watched)
    lost = rounds = 0.0
    for step in range(12_000):
        size = 1 if step % 62 < 2 else 64
        if decider.decide(load(size)).mode is S:
            watched.result(S, size, size, round(1.6 * size), 0)
            rounds += 1
            lost += max(0.0, table().break_even(size, 256) - 1.6) * table().ms(P, size, 256)
    assert rounds > 0
    assert lost < 0.01 * 12_000 * 7


def test_a_forced_flap_of_the_load_switches_at_most_once_per_dwell() -> None:
    watched = observations()
    teach(watched, 2.5)
    decider = policy(watched, dwell=10)
    modes = [decider.decide(load(4 if step % 11 else 64)).mode for step in range(2000)]
    assert sum(a is not b for a, b in itertools.pairwise(modes)) <= 2 * 2000 / 10


def test_the_table_helper_is_what_the_tests_assume() -> None:
    assert table().break_even(16, 256) == pytest.approx(1.818, rel=0.001)
