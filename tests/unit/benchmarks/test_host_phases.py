"""The clocks on a scheduler's iterations."""

from __future__ import annotations

from types import SimpleNamespace as Record
from typing import Any

import pytest

from benchmarks import host_phases
from benchmarks.host_phases import HostPhases


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Scheduler:
    """Takes 1 s to make a batch, 2 to launch it, 3 for its result to come, 4 to read that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def get_next_batch_to_run(self, *, last_batch: Any) -> str:
        self._clock.now += 1
        return f"after {last_batch}"

    def run_batch(self, batch: Any) -> Any:
        self._clock.now += 2
        return Record(copy_done=Record(synchronize=self._come))

    def process_batch_result(self, batch: Any, result: Any) -> None:
        self._clock.now += 4

    def _come(self) -> None:
        self._clock.now += 3


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    clock = Clock()
    monkeypatch.setattr(host_phases, "time", clock)
    return Scheduler(clock)


def batch(is_prefill: bool) -> Any:
    return Record(forward_mode=Record(is_extend=lambda: is_prefill))


def test_phases_are_told_apart_by_what_an_iteration_launches(scheduler: Scheduler) -> None:
    phases = HostPhases(scheduler)
    for is_prefill in (False, True, False, False, False):
        assert scheduler.get_next_batch_to_run(last_batch=1) == "after 1"
        launched = batch(is_prefill)
        result = scheduler.run_batch(launched)
        scheduler.process_batch_result(launched, result)
    times = {"schedule": 1000, "launch": 2000, "wait": 3000, "process": 4000}
    assert phases.summary_ms() == {
        "decode": {"count": 3, **times},
        "prefill": {"count": 1, **times},
        "first_decode": {"count": 1, **times},
    }
    phases.clear()
    assert phases.summary_ms() == {}


def test_an_iteration_that_reads_nothing_counts_no_wait(scheduler: Scheduler) -> None:
    phases = HostPhases(scheduler)
    scheduler.get_next_batch_to_run(last_batch=None)
    scheduler.run_batch(batch(is_prefill=True))
    assert phases.summary_ms() == {"prefill": {"count": 1, "schedule": 1000, "launch": 2000}}
