"""Accept lengths that are simulated without chance."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.stepping import AcceptLengths


@pytest.mark.parametrize("mean", [1.0, 1.6, 2.6, 3.4, 4.0])
def test_accept_lengths_keep_their_mean_at_any_time(mean: float) -> None:
    draw = AcceptLengths(mean)
    lengths = [draw(0.0, "", 4) for _ in range(200)]
    assert set(lengths) <= {int(mean), int(mean) + 1}
    for count, total in enumerate(itertools.accumulate(lengths), 1):
        assert abs(total - mean * count) <= 1


def test_no_length_is_longer_than_a_round() -> None:
    draw = AcceptLengths(2.6)
    assert [draw(0.0, "", longest) for longest in (4, 2, 1, 2, 4)] == [3, 2, 1, 2, 2]
