"""The sums that a profile of the device comes to."""

from __future__ import annotations

import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.device_work import LARGEST, covered_ns, summarise


@pytest.mark.parametrize(
    ("spans", "covered"),
    [
        ([], 0),
        ([(5, 9)], 4),
        ([(0, 4), (6, 8)], 6),
        ([(6, 8), (0, 4)], 6),  # in any order
        ([(0, 10), (2, 5), (4, 12)], 12),  # two streams at a time count once
        ([(0, 10), (2, 5), (11, 12)], 11),
    ],
)
def test_covered_is_the_length_of_the_union(spans: list[tuple[int, int]], covered: int) -> None:
    assert covered_ns(spans) == covered


def test_summary_is_per_token_and_per_second() -> None:
    events = [("gemm", 0, 6000), ("copy", 4000, 4000), ("gemm", 10_000, 2000)]
    found = summarise(events, (0, 20_000), tokens=4)
    assert found["busy_share"] == pytest.approx(0.5)
    assert found["busy_us_per_token"] == pytest.approx(2.5)
    assert found["kernels_us_per_token"] == {"gemm": 2.0, "copy": 1.0}


def test_only_the_part_inside_the_window_counts() -> None:
    events = [("gemm", 0, 6000), ("copy", 9000, 9000), ("late", 30_000, 1000)]
    found = summarise(events, (5000, 15_000), tokens=1)
    assert found["busy_share"] == pytest.approx(0.7)
    assert found["kernels_us_per_token"] == {"gemm": 1.0, "copy": 6.0}


def test_the_profiler_has_the_clock_of_the_window() -> None:
    """An event of the CPU's, which a machine without a GPU has too, lies inside."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        start = time.time_ns()
        torch.ones(1000, 1000).sum()
        end = time.time_ns()
    events = profiler.profiler.kineto_results.events()
    assert start <= min(event.start_ns() for event in events)
    assert max(event.start_ns() + event.duration_ns() for event in events) <= end


def test_names_that_begin_alike_are_added_up() -> None:
    events = [("k" * 130 + "a", 0, 6000), ("k" * 130 + "b", 0, 2000)]
    found = summarise(events, (0, 10**9), tokens=1)["kernels_us_per_token"]
    assert found == {"k" * 120: 8.0}


def test_only_the_largest_kernels_are_kept() -> None:
    events = [(f"kernel {i}", 0, i) for i in range(1, 100)]
    kept = summarise(events, (0, 10**9), tokens=1)["kernels_us_per_token"]
    assert len(kept) == LARGEST
    assert next(iter(kept)) == "kernel 99"
