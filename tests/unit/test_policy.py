"""Step tables: batch size in, mode and reason out."""

import itertools
import random

import pytest

from spec_toggle.load import LoadSample
from spec_toggle.policy import Mode, ThresholdPolicy

S, P = Mode.SPEC, Mode.PLAIN


def modes(policy: ThresholdPolicy, sizes: list[int]) -> list[Mode]:
    return [policy.decide(LoadSample(size)).mode for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 4, 5, 4, 5], [S, S, P, P, P]),  # up at once; dwell keeps it plain
        ([5, 2, 2, 2], [P, P, P, S]),  # back after three low iterations
        ([5, 2, 2, 3, 2, 2, 2], [P, P, P, P, P, P, S]),  # 3 is in the hysteresis band: start over
        ([5, 2, 2, 5, 2, 2, 2], [P, P, P, P, P, P, S]),  # above the threshold: start over
        ([5, 0, 1], [P, S, S]),  # idle: nothing is running that could flap
        ([4, 4, 4], [S, S, S]),  # the threshold itself still speculates
    ],
)
def test_step_table(sizes: list[int], expected: list[Mode]) -> None:
    assert modes(ThresholdPolicy(threshold=4, resume_at=2, dwell=3), sizes) == expected


def test_reasons_name_the_number_that_decided() -> None:
    policy = ThresholdPolicy(threshold=4, resume_at=2, dwell=2)
    assert policy.decide(LoadSample(9)).reason == "batch size 9 > threshold 4"
    assert policy.decide(LoadSample(3)).reason == "batch size 3 > 2 (hysteresis)"
    assert policy.decide(LoadSample(2)).reason == "dwell 1 of 2"
    assert policy.decide(LoadSample(2)).reason == "batch size 2 <= 2 for 2 iterations"


def test_flapping_load_switches_at_most_once_per_dwell() -> None:
    policy = ThresholdPolicy(threshold=8, resume_at=8, dwell=10)
    seen = modes(policy, [8 + step % 2 for step in range(1000)])
    assert seen.count(S) == 1  # only before the first crossing: it is never low for ten in a row

    random_load = random.Random(0)
    policy = ThresholdPolicy(threshold=8, resume_at=8, dwell=10)
    seen = modes(policy, [random_load.randint(1, 9) for _ in range(2000)])
    switches = sum(a is not b for a, b in itertools.pairwise(seen))
    assert 0 < switches <= 2 * 2000 / 10


def test_threshold_zero_never_speculates() -> None:
    policy = ThresholdPolicy(threshold=0, resume_at=0, dwell=1)
    assert modes(policy, [1, 5, 0, 1, 0, 0, 1]) == [P] * 7


def test_equal_samples_give_equal_decisions() -> None:
    load = random.Random(3)
    samples = [LoadSample(load.randint(0, 12), load.randint(0, 5)) for _ in range(500)]
    ranks = [ThresholdPolicy(threshold=6, resume_at=5, dwell=4) for _ in range(2)]
    for sample in samples:
        first, second = (rank.decide(sample) for rank in ranks)
        assert first == second
