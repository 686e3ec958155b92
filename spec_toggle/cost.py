"""What an iteration costs: plain-step and round times over batch size and context."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from spec_toggle.policy import Mode

T = TypeVar("T")
Grid = tuple[tuple[float, ...], ...]
Counts = tuple[tuple[int, ...], ...]

AXES = ("batch_sizes", "contexts")
# How far one correction may move a cell that was measured before, and which share of the way.
MAX_STEP = 2.0
STEP_SHARE = 0.25
# Share of an interpolation from which on a timing counts as one of the cell itself.
NEAR = 0.25
# A table not measured yet: its contexts, milliseconds of a plain step of one request, how many
# requests cost twice as much, and milliseconds to read the KV cache of 1000 tokens.
PRIOR_CONTEXTS = (256, 2896, 32768)
PRIOR_KV_MS = 0.04
PRIOR_MS = 5.0
PRIOR_KNEE = 128


class CostError(ValueError):
    """A table that cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Timing:
    """Measured iterations: ``ms`` each, ``count`` of them, at ``context`` tokens per request."""

    mode: Mode
    batch_size: int
    context: float
    ms: float
    count: int = 1


@dataclass(frozen=True)
class CostTable:
    """Milliseconds per iteration, rows by context and columns by batch size.

    ``contexts``: tokens per request, ascending. ``batch_sizes``: requests, ascending.
    ``plain_count``, ``round_count``: measurements behind each cell, 0 for an assumed one.
    Raises CostError for axes that do not ascend, shapes that do not match, or times not positive.
    """

    batch_sizes: tuple[int, ...]
    contexts: tuple[int, ...]
    plain_ms: Grid
    round_ms: Grid
    plain_count: Counts
    round_count: Counts

    def __post_init__(self) -> None:
        for name, axis in (("batch_sizes", self.batch_sizes), ("contexts", self.contexts)):
            if not axis or list(axis) != sorted(set(axis)) or axis[0] < 0:
                raise CostError(f"{name} {list(axis)} must ascend from 0 or more.")
        shape = [len(self.batch_sizes)] * len(self.contexts)
        for grid in (self.plain_ms, self.round_ms, self.plain_count, self.round_count):
            if [len(row) for row in grid] != shape:
                raise CostError("a grid does not have one row per context, one column per batch.")
        times = [ms for grid in (self.plain_ms, self.round_ms) for row in grid for ms in row]
        if not all(math.isfinite(ms) and ms > 0 for ms in times):
            raise CostError("times must be positive milliseconds.")

    def ms(self, mode: Mode, batch_size: float, context: float) -> float:
        """Bilinear between the cells; beyond the edges, the time at the edge."""
        across, down = _between(self.batch_sizes, batch_size), _between(self.contexts, context)
        return _bilinear(self._grid(mode), across, down)

    def break_even(self, batch_size: float, context: float) -> float:
        """Tokens per round and request above which rounds are faster than plain steps."""
        across, down = _between(self.batch_sizes, batch_size), _between(self.contexts, context)
        return _bilinear(self.round_ms, across, down) / _bilinear(self.plain_ms, across, down)

    def is_measured(self, mode: Mode, batch_size: float, context: float) -> bool:
        """Whether the cell nearest to this load rests on a measurement."""
        row, column, _ = max(self._cells(batch_size, context), key=lambda cell: cell[2])
        return self._counts(mode)[row][column] > 0

    def corrected(self, timings: Iterable[Timing]) -> CostTable:
        """The table moved towards ``timings``; the same timings give the same table.

        A measured cell moves by its share of the interpolation, slowly. The first timing of an
        assumed cell sets it, and scales the other assumed cells of its mode with it, those of the
        other mode too while that has no timing at all: what is assumed is the shape of the table,
        not its unit.
        """
        table = self
        for timing in timings:
            table = table._corrected(timing)
        return table

    def _corrected(self, timing: Timing) -> CostTable:
        near = {cell[:2]: cell[2] for cell in self._cells(timing.batch_size, timing.context)}
        counts = self._counts(timing.mode)
        ratio = timing.ms / self.ms(timing.mode, timing.batch_size, timing.context)
        is_first = not self.is_measured(timing.mode, timing.batch_size, timing.context)
        step = math.pow(min(MAX_STEP, max(1 / MAX_STEP, ratio)), STEP_SHARE)

        def factor(row: int, column: int) -> float:
            weight = near.get((row, column), 0.0)
            if counts[row][column] == 0 and (is_first or weight >= NEAR):
                return ratio  # it counts as measured from now on
            return math.pow(step, weight)

        def count(row: int, column: int) -> int:
            is_near = near.get((row, column), 0.0) >= NEAR
            return counts[row][column] + (timing.count if is_near else 0)

        grid = self._mapped(lambda r, c: self._grid(timing.mode)[r][c] * factor(r, c))
        other = self._other(timing.mode)
        other_grid = self._grid(other)
        if is_first and not any(map(any, self._counts(other))):
            other_grid = self._mapped(lambda r, c: self._grid(other)[r][c] * ratio)
        is_plain = timing.mode is Mode.PLAIN
        return replace(
            self,
            plain_ms=grid if is_plain else other_grid,
            round_ms=other_grid if is_plain else grid,
            plain_count=self._mapped(count) if is_plain else self.plain_count,
            round_count=self.round_count if is_plain else self._mapped(count),
        )

    def _mapped(self, cell: Callable[[int, int], T]) -> tuple[tuple[T, ...], ...]:
        columns = range(len(self.batch_sizes))
        return tuple(tuple(cell(r, c) for c in columns) for r in range(len(self.contexts)))

    @staticmethod
    def _other(mode: Mode) -> Mode:
        return Mode.SPEC if mode is Mode.PLAIN else Mode.PLAIN

    def _grid(self, mode: Mode) -> Grid:
        return self.plain_ms if mode is Mode.PLAIN else self.round_ms

    def _counts(self, mode: Mode) -> Counts:
        return self.plain_count if mode is Mode.PLAIN else self.round_count

    def _cells(self, batch_size: float, context: float) -> Iterator[tuple[int, int, float]]:
        """Rows and columns around a load, with weights that add up to 1."""
        low, high, share = _between(self.batch_sizes, batch_size)
        top, bottom, depth = _between(self.contexts, context)
        for row, row_weight in ((top, 1 - depth), (bottom, depth)):
            for column, weight in ((low, 1 - share), (high, share)):
                if row_weight * weight > 0:
                    yield row, column, row_weight * weight

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        """Raises CostError for anything but the output of ``to_json``."""
        try:
            values = json.loads(text)
            sizes, contexts = (tuple(map(int, values.pop(axis))) for axis in AXES)
            grids = {name: tuple(tuple(row) for row in grid) for name, grid in values.items()}
            return cls(sizes, contexts, **grids)
        except CostError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CostError(f"not a cost table ({error}).") from None


def _bilinear(grid: Grid, across: tuple[int, int, float], down: tuple[int, int, float]) -> float:
    low, high, share = across
    top, bottom, depth = down
    upper = grid[top][low] + share * (grid[top][high] - grid[top][low])
    lower = grid[bottom][low] + share * (grid[bottom][high] - grid[bottom][low])
    return upper + depth * (lower - upper)


def _between(axis: Sequence[int], value: float) -> tuple[int, int, float]:
    """Indices around ``value``, and how far it is from the first to the second (0 to 1)."""
    if value <= axis[0]:
        return 0, 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, len(axis) - 1, 0.0
    high = bisect_right(axis, value)
    return high - 1, high, (value - axis[high - 1]) / (axis[high] - axis[high - 1])


def prior_table(num_steps: int, num_draft_tokens: int, max_batch_size: int) -> CostTable:
    """What to assume before anything is measured.

    An iteration reads the weights once and the KV cache of every request, and computes per token. A
    round forwards ``num_draft_tokens`` per request through the target, reading the KV for each, and
    ``num_steps`` and one times through a draft that is a tenth of it. The first timing gives the
    scale.
    """
    sizes = [1]
    while sizes[-1] * 2 <= max_batch_size:
        sizes.append(sizes[-1] * 2)

    def times(tokens: int, draft: float) -> Grid:
        return tuple(
            tuple(
                PRIOR_MS * (1 + draft) * (1 + size * tokens / PRIOR_KNEE)
                + PRIOR_KV_MS * tokens * size * context / 1000
                for size in sizes
            )
            for context in PRIOR_CONTEXTS
        )

    unknown = (tuple(0 for _ in sizes),) * len(PRIOR_CONTEXTS)
    plain, rounds = times(1, 0.0), times(num_draft_tokens, 0.1 * (num_steps + 1))
    return CostTable(tuple(sizes), PRIOR_CONTEXTS, plain, rounds, unknown, unknown)
