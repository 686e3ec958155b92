"""What the host does in an iteration of the scheduler, and for how long it waits for a result."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PHASES = ("schedule", "launch", "wait", "process")


class HostPhases:
    """Clocks on one scheduler.

    ``schedule``: making the next batch; ``launch``: its forward, from the worker's call on;
    ``wait``: until the result that is read is there; ``process``: reading it. Of an iteration that
    launches nothing only the last two count. Iterations are told apart by what they launch: a
    ``prefill``, a ``decode``, or the ``first_decode`` after a prefill, which merges two batches.
    """

    def __init__(self, scheduler: Any) -> None:
        self._times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._kind = self._before = "none"
        self._schedule_s = 0.0
        for name in ("get_next_batch_to_run", "run_batch", "process_batch_result"):
            around = getattr(self, f"_{name}")
            setattr(scheduler, name, _wrapped(getattr(scheduler, name), around))

    def clear(self) -> None:
        self._times.clear()

    def summary_ms(self) -> dict[str, dict[str, float]]:
        """Mean of each phase, by kind of iteration, with their number as ``count``."""
        return {
            kind: {
                "count": len(times["launch"]),
                **{name: 1e3 * statistics.fmean(times[name]) for name in PHASES if times[name]},
            }
            for kind, times in self._times.items()
        }

    def _get_next_batch_to_run(self, call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        start = time.perf_counter()
        plan = call()
        self._schedule_s = time.perf_counter() - start
        return plan

    def _run_batch(self, call: Callable[[], Any], batch: Any, *_: Any, **__: Any) -> Any:
        is_prefill = batch.forward_mode.is_extend()
        follows = "first_decode" if self._before == "prefill" else "decode"
        self._kind = self._before = "prefill" if is_prefill else follows
        self._times[self._kind]["schedule"].append(self._schedule_s)
        with self._clock("launch"):
            return call()

    def _process_batch_result(
        self, call: Callable[[], Any], batch: Any, result: Any, *_: Any, **__: Any
    ) -> Any:
        done = getattr(result, "copy_done", None)
        with self._clock("wait"):
            if done is not None:
                done.synchronize()
        with self._clock("process"):
            return call()

    @contextmanager
    def _clock(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._times[self._kind][phase].append(time.perf_counter() - start)


def _wrapped(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    def call(*positional: Any, **named: Any) -> Any:
        return around(lambda: original(*positional, **named), *positional, **named)

    return call
