"""Timing plain steps and rounds at start, in the way they run in service."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from spec_toggle.compat import replaced
from spec_toggle.cost import CostTable
from spec_toggle.policy import Mode
from spec_toggle.synthetic_batch import SyntheticBatches

logger = logging.getLogger(__name__)

# Iterations per cell: some to warm up, then the ones that are timed together.
WARM_UP = 2
TIMED = 8
BUDGET_S = 10.0
SHORT_CONTEXT = 256
LONG_CONTEXT = 32768
# A saved table is used if one cell measured again is this close to it.
TOLERANCE = 0.15

Share = Callable[[list[Any]], list[Any]]


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


class Profiler:
    """Runs real iterations on synthetic batches.

    Every rank of a tensor-parallel group runs the same iterations, because they communicate; only
    rank 0's clock counts. ``share``: gives every rank what rank 0 passed in.
    """

    def __init__(self, scheduler: Any, toggle: Any, share: Share) -> None:
        self._scheduler = scheduler
        self._toggle = toggle
        self._share = share
        self._batches = SyntheticBatches(scheduler)

    def axes(self) -> Axes:
        return plan_axes(self._batches.max_size, self._batches.max_context)

    def measure(self, axes: Axes, budget_s: float = BUDGET_S) -> CostTable:
        """The table over ``axes``. Cells that do not fit the KV pool, or for which no time was
        left, are filled in by the growth of their neighbours, with a count of 0.
        """
        started = time.perf_counter()
        timings: dict[tuple[Mode, int, int], float] = {}
        with self._quiet():
            for context in axes.contexts:
                for size in axes.batch_sizes:
                    (elapsed,) = self._share([time.perf_counter() - started])
                    if elapsed > budget_s or not self._batches.fits(size, context):
                        continue
                    timings.update(self._time_both(size, context))
        return fill_table(axes, timings)

    def confirms(self, table: CostTable) -> bool:
        """Whether one cell, measured again, is within TOLERANCE of the table in both modes."""
        size = table.batch_sizes[len(table.batch_sizes) // 2]
        context = table.contexts[0]
        with self._quiet():
            found = self._time_both(size, context)
        errors = [ms / table.ms(mode, size, context) - 1 for (mode, _, _), ms in found.items()]
        (is_close,) = self._share([max(map(abs, errors)) <= TOLERANCE])
        if not is_close:
            logger.info(
                "Dynamic speculation: the saved profile is off by %s at batch size %d.",
                ", ".join(f"{error:+.0%}" for error in errors),
                size,
            )
        return bool(is_close)

    def _time_both(self, size: int, context: int) -> dict[tuple[Mode, int, int], float]:
        batch = self._batches.make(size, context)
        found = {(mode, size, context): self._time(batch, mode) for mode in Mode}
        # Plain steps leave tokens that the draft has yet to see; these requests are no more.
        self._toggle.forget(batch)
        return found

    def _time(self, batch: Any, mode: Mode) -> float:
        """Milliseconds per iteration, on the clock of this rank."""
        with replaced(self._toggle.controller, mode=mode):
            self._run(batch, WARM_UP)
            started = time.perf_counter()
            self._run(batch, TIMED)
            return 1000 * (time.perf_counter() - started) / TIMED

    def _run(self, batch: Any, count: int) -> None:
        """``count`` iterations launched one behind the other, as overlapped scheduling does."""
        scheduler = self._scheduler
        for _ in range(count):
            # The host's own undo of what a forward changes in its batch.
            with scheduler._forward_isolation(batch, overlap=False):
                batch.spec_info = copy.copy(batch.spec_info)  # a round edits it in place
                scheduler.model_worker.forward_batch_generation(batch)
        scheduler.device_module.synchronize()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Leave no trace: not in the counters, nor in the fences between forwards."""
        scheduler, worker = self._scheduler, self._scheduler.model_worker
        stream = contextlib.nullcontext()
        if scheduler.enable_overlap:
            stream = scheduler.forward_stream_ctx
        try:
            with torch.no_grad(), stream, replaced(self._toggle, host_lengths=None):
                yield
        finally:
            self._batches.close()
            scheduler.device_module.synchronize()
            worker.target_worker.model_runner.shared_read_done_event = None
            worker.draft_worker.draft_runner.shared_read_done_event = None


def fill_table(axes: Axes, found: dict[tuple[Mode, int, int], float]) -> CostTable:
    """A table over ``axes`` from the cells that were measured; the first must be."""
    grids = {mode: _fill_grid(axes, mode, found) for mode in Mode}
    counts = {
        mode: tuple(
            tuple(TIMED * ((mode, size, context) in found) for size in axes.batch_sizes)
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


def _fill_grid(
    axes: Axes, mode: Mode, found: dict[tuple[Mode, int, int], float]
) -> tuple[tuple[float, ...], ...]:
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
