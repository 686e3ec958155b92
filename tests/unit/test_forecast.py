"""The load that a prefill leads to, and what a policy makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.forecast import load_after
from spec_toggle.load import LoadSample
from spec_toggle.policy import Mode, ThresholdPolicy
from spec_toggle.steering import Force, Order
from tests.unit.auto import load, observations, policy, teach


def batch(*lengths: tuple[int, int]) -> Any:
    """Requests by the lengths of prompt and output."""
    reqs = [SimpleNamespace(origin_input_ids=[0] * p, output_ids=[0] * o) for p, o in lengths]
    return SimpleNamespace(reqs=reqs)


@pytest.mark.parametrize(
    ("waiting", "size_before", "limit", "size"),
    [
        (0, 2, 100, 3),  # two that decode and one in the prefill
        (7, 2, 100, 10),  # those who wait are let in first
        (7, 2, 5, 5),  # as far as the server takes them
        (0, 30, 100, 30),  # there were more a moment ago
        (0, 30, 5, 5),
    ],
)
def test_the_load_after_a_prefill(waiting: int, size_before: int, limit: int, size: int) -> None:
    scheduler = SimpleNamespace(
        running_batch=batch((20, 5), (10, 5)),
        waiting_queue=[object()] * waiting,
        max_running_requests=limit,
    )
    found = load_after(scheduler, batch((20, 0)), size_before)
    assert (found.batch_size, found.context_per_request) == (size, 20)  # of 25, 15 and 20 tokens


def test_a_rank_without_requests_has_no_load() -> None:
    """With attention DP it takes part in the others' iterations."""
    scheduler = SimpleNamespace(running_batch=batch(), waiting_queue=[], max_running_requests=8)
    assert load_after(scheduler, batch(), 0) == LoadSample(0)


def test_a_threshold_expects_what_it_will_decide() -> None:
    for size in range(1, 8):
        decider = ThresholdPolicy(threshold=4, resume_at=2, dwell=3)
        expected = decider.expects_plain(LoadSample(size))
        assert expected == (decider.decide(LoadSample(size)).mode is Mode.PLAIN) == (size > 4)


@pytest.mark.parametrize(("size", "context"), [(4, 256), (64, 256), (256, 256), (256, 32768)])
def test_auto_expects_what_it_will_decide_and_learns_nothing_by_it(size: int, context: int) -> None:
    watched = observations()
    teach(watched, 2.5)
    decider = policy(watched)
    expected = [decider.expects_plain(load(size, context)) for _ in range(100)]
    first = decider.decide(load(size, context)).mode
    assert set(expected) == {first is Mode.PLAIN}


def test_a_forced_mode_and_one_that_lasts_come_before_the_policy() -> None:
    config = DynamicSpecConfig(threshold=4)
    small, large = LoadSample(1), LoadSample(9)
    subject = Controller.from_config(config)
    assert [subject.expects_plain(sample) for sample in (small, large)] == [False, True]
    subject.begin_iteration(large)
    assert subject.expects_plain(small)  # for as long as the dwell lasts
    subject.steer(Order(force=Force(Mode.SPEC, until=1.0)))
    assert not subject.expects_plain(large)
    subject.steer(Order(force=Force(Mode.PLAIN, until=2.0)))
    subject.idle()
    assert subject.expects_plain(small)
