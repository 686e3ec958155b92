"""The cost table: interpolation, corrections, and files that are not one."""

import dataclasses
import itertools
import json
import random

import pytest

from spec_toggle.cost import CostError, CostTable, Timing, prior_table
from spec_toggle.policy import Mode
from tests.unit.auto import SIZES, table

PLAIN, SPEC = Mode.PLAIN, Mode.SPEC


@pytest.mark.parametrize(
    ("batch_size", "context", "expected"),
    [
        (1, 256, 5.0),  # a cell
        (10, 256, 5.25),  # between two sizes
        (64, 16512, 23.5),  # between two contexts
        (40, 16512, (6.25 + 26.25) / 2),  # between four cells
        (0, 0, 5.0),  # below both axes
        (1000, 10**6, 150.0),  # beyond both axes
        (256, 0, 15.0),
    ],
)
def test_interpolation_and_edges(batch_size: int, context: int, expected: float) -> None:
    assert table().ms(PLAIN, batch_size, context) == pytest.approx(expected)


def test_break_even_is_the_accept_length_that_pays() -> None:
    assert table().break_even(4, 256) == pytest.approx(1.5)
    assert table().break_even(256, 32768) == pytest.approx(2.0)


def test_interpolation_stays_between_the_cells_around() -> None:
    costs, rng = table(), random.Random(1)
    for _ in range(2000):
        size, context = rng.uniform(0, 300), rng.uniform(0, 40000)
        mode = rng.choice((PLAIN, SPEC))
        corners = [
            costs.ms(mode, near_size, near_context)
            for near_size in (
                max([s for s in SIZES if s <= size], default=1),
                min([s for s in SIZES if s >= size], default=256),
            )
            for near_context in (256, 32768)
        ]
        assert min(corners) - 1e-9 <= costs.ms(mode, size, context) <= max(corners) + 1e-9


def test_break_even_rises_with_the_batch() -> None:
    for context in (256, 5000, 32768):
        values = [table().break_even(size, context) for size in range(1, 300)]
        assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))


def test_json_round_trip() -> None:
    assert CostTable.from_json(table().to_json()) == table()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"batch_sizes": [4, 1, 16, 64, 256]}, "must ascend"),
        ({"plain_ms": [[1.0] * 5]}, "one row per context"),
        ({"plain_ms": [[0.0] * 5, [1.0] * 5]}, "positive"),
        ({"plain_ms": [[float("nan")] * 5, [1.0] * 5]}, "positive"),
        ({"contexts": None}, "not a cost table"),
        ({"extra": [[1]]}, "not a cost table"),
    ],
)
def test_a_broken_table_is_refused(change: dict[str, object], part: str) -> None:
    text = json.dumps({**json.loads(table().to_json()), **change})
    with pytest.raises(CostError, match=part):
        CostTable.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"batch_sizes": [1]}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CostError):
        CostTable.from_json(text)


def test_a_correction_moves_near_cells_only_and_slowly() -> None:
    before = table()
    after = before.corrected([Timing(PLAIN, 16, 256, 5.5 * 1.2, 20)])
    assert 5.5 < after.ms(PLAIN, 16, 256) < 5.5 * 1.2
    for size in (1, 4, 64, 256):
        assert after.ms(PLAIN, size, 256) == before.ms(PLAIN, size, 256)
    assert after.round_ms == before.round_ms


def test_corrections_converge_to_what_is_measured() -> None:
    costs = table()
    for _ in range(40):
        costs = costs.corrected([Timing(SPEC, 30, 1000, 20.0)])
    assert costs.ms(SPEC, 30, 1000) == pytest.approx(20.0, rel=0.01)


def test_one_wild_timing_does_little() -> None:
    after = table().corrected([Timing(PLAIN, 16, 256, 5000.0)])
    assert after.ms(PLAIN, 16, 256) < 5.5 * 1.2


def test_the_first_timing_gives_an_assumed_table_its_unit() -> None:
    prior = prior_table(num_steps=3, num_draft_tokens=4, max_batch_size=64)
    shape = prior.break_even(64, 0)
    after = prior.corrected([Timing(SPEC, 4, 100, 30.0)])
    assert after.ms(SPEC, 4, 100) == pytest.approx(30.0)
    assert after.break_even(64, 0) == pytest.approx(shape)
    assert after.is_measured(SPEC, 4, 0) and not after.is_measured(PLAIN, 4, 0)
    again = after.corrected([Timing(PLAIN, 4, 100, 10.0)])
    assert again.break_even(4, 0) == pytest.approx(3.0)


def test_the_prior_speculates_for_one_request_and_not_for_many() -> None:
    prior = prior_table(num_steps=3, num_draft_tokens=4, max_batch_size=256)
    assert prior.break_even(1, 0) < 2 and prior.break_even(256, 0) > 3
    assert prior.batch_sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_an_assumed_cell_beside_a_measured_one_moves_no_faster_than_it() -> None:
    costs = table()
    counts = tuple(tuple(0 if size == 64 else 8 for size in SIZES) for _ in costs.contexts)
    costs = dataclasses.replace(costs, round_count=counts)
    timing = Timing(SPEC, 22, 256, 1.5 * costs.ms(SPEC, 22, 256))  # an eighth of the way to 64
    for _ in range(20):
        costs = costs.corrected([timing])
    assert costs.ms(SPEC, 64, 256) < 2 * table().ms(SPEC, 64, 256)
    assert costs.ms(SPEC, 22, 256) == pytest.approx(timing.ms, rel=0.05)
