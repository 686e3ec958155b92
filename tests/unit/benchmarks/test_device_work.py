"""The sums that a profile of the device comes to."""

from __future__ import annotations

import pytest

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
    found = summarise(events, seconds=20e-6, tokens=4)
    assert found["busy_share"] == pytest.approx(0.5)
    assert found["busy_us_per_token"] == pytest.approx(2.5)
    assert found["kernels_us_per_token"] == {"gemm": 2.0, "copy": 1.0}


def test_names_that_begin_alike_are_added_up() -> None:
    events = [("k" * 130 + "a", 0, 6000), ("k" * 130 + "b", 0, 2000)]
    found = summarise(events, seconds=1.0, tokens=1)["kernels_us_per_token"]
    assert found == {"k" * 120: 8.0}


def test_only_the_largest_kernels_are_kept() -> None:
    events = [(f"kernel {i}", 0, i) for i in range(1, 100)]
    kept = summarise(events, seconds=1.0, tokens=1)["kernels_us_per_token"]
    assert len(kept) == LARGEST
    assert next(iter(kept)) == "kernel 99"
