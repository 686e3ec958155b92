"""Which loads to time at start, and the table that comes of the times."""

from __future__ import annotations

from dataclasses import dataclass

from spec_toggle.cost import CostTable
from spec_toggle.policy import Mode

SHORT_CONTEXT = 256
LONG_CONTEXT = 32768

Times = dict[tuple[Mode, int, int], float]
"""Milliseconds by mode, batch size and context."""


@dataclass(frozen=True)
class Axes:
    batch_sizes: tuple[int, ...]
    contexts: tuple[int, ...]


def plan_axes(max_size: int, max_context: int) -> Axes:
    """Powers of two up to ``max_size``; a short, a middle and a long context."""
    sizes = [1 << power for power in range(max_size.bit_length())]
    short = min(SHORT_CONTEXT, max_context)
    long = min(LONG_CONTEXT, max_context)
    contexts = {short, int((short * long) ** 0.5), long} if long > 2 * short else {short}
    return Axes(tuple(sorted({*sizes, max_size})), tuple(sorted(contexts)))


def fill_table(axes: Axes, found: Times, iterations: int) -> CostTable:
    """A table over ``axes`` from the cells that were measured; the first must be.

    ``iterations``: behind each time. Other cells count 0.
    """
    grids = {mode: _fill_grid(axes, mode, found) for mode in Mode}
    counts = {
        mode: tuple(
            tuple(iterations * ((mode, size, context) in found) for size in axes.batch_sizes)
            for context in axes.contexts
        )
        for mode in Mode
    }
    return CostTable(
        axes.batch_sizes,
        axes.contexts,
        grids[Mode.PLAIN],
        grids[Mode.SPEC],
        counts[Mode.PLAIN],
        counts[Mode.SPEC],
    )


def _fill_grid(axes: Axes, mode: Mode, found: Times) -> tuple[tuple[float, ...], ...]:
    """Missing cells grow over batch size as the row above does, or not at all in the first row."""
    rows: list[list[float]] = []
    for context in axes.contexts:
        row: list[float] = []
        for column, size in enumerate(axes.batch_sizes):
            ms = found.get((mode, size, context))
            if ms is None:
                above = rows[-1] if rows else None
                growth = above[column] / above[column - 1] if above and column else 1.0
                ms = row[-1] * growth if row else rows[-1][0]
            row.append(ms)
        rows.append(row)
    return tuple(map(tuple, rows))
