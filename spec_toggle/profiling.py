"""Timing plain steps and rounds at start, in the way they run in service."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from spec_toggle.compat import replaced
from spec_toggle.cost import CostTable
from spec_toggle.policy import Mode
from spec_toggle.profile_plan import Axes, Times, fill_table, plan_axes
from spec_toggle.synthetic_batch import SyntheticBatches

logger = logging.getLogger(__name__)

# Iterations per cell: some to warm up, then the ones that are timed together; fewer where one
# takes long. Short ones are timed twice: whatever else runs at start can hold them up.
WARM_UP = 2
TIMED = 8
LONG_MS = 40.0
TIMED_LONG = 3
BUDGET_S = 10.0
# A saved table is used if one cell measured again is this close to it.
TOLERANCE = 0.15

Share = Callable[[list[Any]], list[Any]]


class Profiler:
    """Runs real iterations on synthetic batches.

    Every rank of a tensor-parallel group runs the same iterations, because they communicate; only
    rank 0's clock counts. ``share``: gives every rank what rank 0 passed in.
    """

    def __init__(self, scheduler: Any, toggle: Any, share: Share) -> None:
        self._scheduler = scheduler
        self._toggle = toggle
        self._share = share
        self._batches = SyntheticBatches(scheduler, growth=WARM_UP + TIMED)

    def axes(self) -> Axes:
        """Up to the largest native graph: what runs without one is no batch to plan for."""
        largest = self._batches.max_size
        if self._toggle.graphs is not None:
            largest = min(largest, self._toggle.graphs.batch_sizes[-1])
        return plan_axes(largest, self._batches.max_context)

    def measure(self, axes: Axes, budget_s: float = BUDGET_S) -> CostTable:
        """The table over ``axes``, within about ``budget_s`` seconds.

        Cells that do not fit the KV pool, or for which no time was left, are filled in from their
        neighbours, with a count of 0.
        """
        timings: Times = {}
        with self._quiet():
            self._time_both(axes.batch_sizes[0], axes.contexts[0])  # compiles kernels, once
            end = time.perf_counter() + budget_s
            for context in axes.contexts:
                for size in axes.batch_sizes:
                    self._add(timings, size, context, end)
                if context == axes.contexts[0]:
                    for size in axes.batch_sizes:
                        self._add(timings, size, context, end, is_again=True)
        return fill_table(axes, timings, TIMED)

    def _add(
        self, timings: Times, size: int, context: int, end: float, is_again: bool = False
    ) -> None:
        """Time a cell that fits, if it is not ``end`` yet; ``is_again``: a short one once more."""
        nearest = [ms for (mode, n, _), ms in timings.items() if mode is Mode.SPEC and n <= size]
        known_ms = timings.get((Mode.SPEC, size, context), nearest[-1] if nearest else 0.0)
        is_late, is_long = self._share([time.perf_counter() > end, known_ms > LONG_MS])
        is_missing = (Mode.SPEC, size, context) not in timings
        is_unwanted = is_again and (is_long or is_missing)
        if is_late or is_unwanted or not self._batches.fits(size, context):
            return
        for cell, ms in self._time_both(size, context, TIMED_LONG if is_long else TIMED).items():
            timings[cell] = min(ms, timings.get(cell, ms))

    def confirms(self, table: CostTable) -> bool:
        """Whether one cell, measured again, is within TOLERANCE of the table in both modes."""
        context = table.contexts[0]
        smaller = table.batch_sizes[: len(table.batch_sizes) // 2 + 1]
        size = max(size for size in smaller if size == 1 or self._batches.fits(size, context))
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

    def _time_both(self, size: int, context: int, count: int = TIMED) -> Times:
        batch = self._batches.make(size, context)
        # Rounds last: the first one brings the draft up to date with the plain steps, so that
        # nothing stays pending for requests that are no more.
        modes = (Mode.PLAIN, Mode.SPEC)
        return {(mode, size, context): self._time(batch, mode, count) for mode in modes}

    def _time(self, batch: Any, mode: Mode, count: int) -> float:
        """Milliseconds per iteration of ``count``, on the clock of this rank."""
        with replaced(self._toggle.controller, mode=mode):
            self._run(batch, mode, WARM_UP)
            started = time.perf_counter()
            self._run(batch, mode, count)
            return 1000 * (time.perf_counter() - started) / count

    def _run(self, batch: Any, mode: Mode, count: int) -> None:
        """``count`` iterations launched one behind the other, as overlapped scheduling does.

        A draft sync logs plain steps by position, so these advance the batch. How far a round does
        is known on the device only: rounds repeat.
        """
        scheduler = self._scheduler
        for _ in range(count):
            # The host's own undo of what a forward changes in its batch.
            with scheduler._forward_isolation(batch, overlap=False):
                batch.spec_info = copy.copy(batch.spec_info)  # a round edits it in place
                scheduler.model_worker.forward_batch_generation(batch)
            if mode is Mode.PLAIN:
                self._batches.advance(batch)
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
