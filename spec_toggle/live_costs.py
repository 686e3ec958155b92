"""The cost table in service: rank 0 times iterations, all ranks correct it in step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from spec_toggle.acceptance import AcceptEstimate
from spec_toggle.cost import CostTable, Timing
from spec_toggle.policy import Mode

# Decode iterations between two corrections, or milliseconds: rare, because each is a broadcast;
# less so at first, when nothing may be known.
FIRST_INTERVAL, INTERVAL = 64, 512
INTERVAL_MS = 2500.0
# Iterations after which the results of the ones before have been read.
READ_AFTER = 4
# Iterations that a timing must rest on, and the largest number of them that is kept.
MIN_SAMPLES = 4
MAX_SAMPLES = 64
# Spans longer than this many medians were held up by something that is no part of an iteration.
OUTLIER = 3


class IterationTimer:
    """Times iterations on the host, by the time between consecutive results.

    With overlapped scheduling an iteration is launched before the result of the one before is
    read, so a span around the launch measures nothing. The time between two results of equal mode
    and batch size, with no other forward between them, is what an iteration costs the client.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: tuple[Mode, int, int] | None = None
        self._last_s = 0.0
        self._spans: dict[tuple[Mode, int], list[tuple[float, float]]] = {}

    def result(self, mode: Mode, batch_size: int, context: float, forward: int) -> None:
        """A result was read now. ``forward``: number of its forward, prefills counted too."""
        now = self._clock()
        if self._last == (mode, batch_size, forward - 1):
            spans = self._spans.setdefault((mode, batch_size), [])
            if len(spans) < MAX_SAMPLES:
                spans.append((1000 * (now - self._last_s), context))
        self._last, self._last_s = (mode, batch_size, forward), now

    def drain(self) -> list[Timing]:
        """Means, without the iterations that something held up; fewer than wait for more.

        Not medians: a draft sync every few plain steps is a part of what plain steps cost.
        """
        ready = [key for key, spans in self._spans.items() if len(spans) >= MIN_SAMPLES]
        timings = []
        for mode, batch_size in ready:
            spans = self._spans.pop((mode, batch_size))
            context = statistics.fmean(context for _, context in spans)
            ms = _trimmed_mean([ms for ms, _ in spans])
            timings.append(Timing(mode, batch_size, context, ms, len(spans)))
        return timings


def _trimmed_mean(spans_ms: list[float]) -> float:
    limit = OUTLIER * statistics.median(spans_ms)
    return statistics.fmean(ms for ms in spans_ms if ms <= limit)


class LiveCosts:
    """``table`` is equal on all ranks at every iteration.

    ``share``: gives every rank what rank 0 passed in; called by all ranks at the same iteration.
    ``timer``: None on other ranks, whose clocks decide nothing.
    """

    def __init__(
        self,
        table: CostTable,
        timer: IterationTimer | None,
        share: Callable[[list[Timing]], list[Timing]],
        interval: int = INTERVAL,
    ) -> None:
        self.table = table
        self._timer = timer
        self._share = share
        self._interval = interval
        self._pause = self._left = min(FIRST_INTERVAL, interval)
        self._left_ms = INTERVAL_MS
        self._is_known = True
        self._context = 0.0

    @property
    def is_source(self) -> bool:
        """Whether this rank's clock is the one that counts."""
        return self._timer is not None

    def begin_iteration(self, mode: Mode, batch_size: int, context: float) -> None:
        """Counts decode iterations, which all ranks run in the same order.

        ``mode``: of the iteration before. Time is what the table says, no clock.
        """
        self._context = context
        is_known = self.table.is_measured(mode, batch_size, context)
        if self._is_known and not is_known:  # whatever the table says here may be far off
            self._left, self._pause = min(self._left, 2 * READ_AFTER), READ_AFTER
        self._is_known = is_known
        self._left -= 1
        self._left_ms -= self.table.ms(mode, batch_size, context)
        if self._left <= 0 or self._left_ms <= 0:
            self._pause = self._left = min(2 * self._pause, self._interval)
            self._left_ms = INTERVAL_MS
            timings = [] if self._timer is None else self._timer.drain()
            self.table = self.table.corrected(self._share(timings))

    def correct_soon(self) -> None:
        """There is something new to learn from; called by all ranks at the same iteration."""
        self._left = min(self._left, READ_AFTER)

    def result(self, mode: Mode, batch_size: int, forward: int) -> None:
        if self._timer is not None:
            self._timer.result(mode, batch_size, self._context, forward)


@dataclass
class Observations:
    """What the policy ``auto`` decides from, fed by the controller."""

    costs: LiveCosts
    accept: AcceptEstimate
    max_accept: float

    def result(self, mode: Mode, batch_size: int, requests: int, tokens: int, forward: int) -> None:
        """A result was read. ``requests`` of ``batch_size`` were still live and got ``tokens``."""
        if mode is Mode.SPEC and requests:
            self.accept.observe(requests, tokens)
        self.costs.result(mode, batch_size, forward)
