"""Which loads to time at start, and the table that comes of the times."""

from __future__ import annotations

from dataclasses import dataclass

from spec_toggle.cost import CostTable
from spec_toggle.policy import Mode

# Counts up whenever tables come to be made in another way: saved ones are then not used.
METHOD = 3
SHORT_CONTEXT = 256
LONG_CONTEXT = 32768
# Share of an iteration from which on the time for its KV is more than noise.
CLEAR = 0.05

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
    """Missing cells: no growth over batch size in the first row, by the KV read in the others.

    A decode iteration costs what the batch size costs, as in the first row, and what reading the
    KV cache costs, in proportion to its tokens. A longer context never costs less.
    """
    rows: list[list[float]] = []
    for context in axes.contexts:
        measured = {size: found.get((mode, size, context)) for size in axes.batch_sizes}
        row: list[float] = []
        for column, ms in enumerate(measured.values()):
            if ms is not None:
                row.append(ms)
            elif not rows:
                row.append(row[-1])
            else:
                ms = rows[0][column] + _kv_ms(axes, rows, list(measured.values()), column)
                row.append(max(ms, rows[-1][column]))
        rows.append(row)
    return tuple(map(tuple, rows))


def _kv_ms(axes: Axes, rows: list[list[float]], measured: list[float | None], column: int) -> float:
    """Milliseconds in ``column`` for the KV beyond the shortest context.

    From the largest smaller batch that is ``measured`` in this row, else from the ``rows`` above.
    """
    first, here = axes.contexts[0], axes.contexts[len(rows)]
    above = [kv - base for kv, base in zip(rows[-1], rows[0], strict=True)]
    for smaller in reversed(range(column)):
        ms = measured[smaller]
        if ms is not None:
            factor = axes.batch_sizes[column] / axes.batch_sizes[smaller]
            if above[smaller] > CLEAR * rows[0][smaller]:
                # A few requests leave a part of the GPU idle, so that twice as many may cost the
                # same: the row above shows it.
                factor = min(factor, above[column] / above[smaller])
            return factor * (ms - rows[0][smaller])
    if len(rows) == 1:
        return 0.0
    return above[column] * (here - first) / (axes.contexts[len(rows) - 1] - first)
