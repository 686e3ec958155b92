"""What the device does in a part of a run: how much of the time it works, and at what."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

LARGEST = 40  # kernels that are kept by name


class DeviceWork:
    """A profile of kernels and copies between ``start`` and ``stop``."""

    def __init__(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profiler = profile(activities=[ProfilerActivity.CUDA])

    def start(self) -> None:
        self._profiler.start()
        self._start_ns = time.time_ns()

    def stop(self, tokens: int) -> None:
        """``tokens``: output of the clients meanwhile."""
        self._end_ns = time.time_ns()
        self._tokens = tokens
        self._profiler.stop()

    def summary(self) -> dict[str, Any]:
        events = [
            (event.name(), event.start_ns(), event.duration_ns())
            for event in self._profiler.profiler.kineto_results.events()
            if "CUDA" in str(event.device_type())
        ]
        return summarise(events, (self._start_ns, self._end_ns), self._tokens)


def summarise(
    events: Iterable[tuple[str, int, int]], window: tuple[int, int], tokens: int
) -> dict[str, Any]:
    """``events``: name, start and duration (ns) of each, of which the part in ``window`` (start and
    end, ns, of the same clock) counts; ``tokens``: at least one.

    What was queued in the window may run after it, and what ran into it was queued before.
    """
    first, last = window
    parts = [(name, max(start, first), min(start + ns, last)) for name, start, ns in events]
    parts = [(name, start, end) for name, start, end in parts if start < end]
    busy_ns = covered_ns((start, end) for _, start, end in parts)
    times: Counter[str] = Counter()
    for name, start, end in parts:
        times[name[:120]] += end - start  # cut here, so that names alike are added up
    return {
        "busy_share": busy_ns / (last - first),
        "busy_us_per_token": busy_ns / 1e3 / tokens,
        "kernels_us_per_token": {
            name: duration / 1e3 / tokens for name, duration in times.most_common(LARGEST)
        },
    }


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of ``spans`` (start, end)."""
    ordered = sorted(spans)
    furthest = itertools.accumulate((end for _, end in ordered), max)
    covered, last = 0, 0
    for (start, _), end in zip(ordered, furthest, strict=True):
        covered += max(0, end - max(start, last))
        last = max(last, end)
    return covered
