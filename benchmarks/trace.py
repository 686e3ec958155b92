"""Load that changes over time: when requests arrive, and what their tokens' times say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Rate = Callable[[float], float]  # seconds into the trace -> requests per second


class Served(NamedTuple):
    """One request: arrival (s), and (time in s, output tokens so far) at each of its results."""

    arrival: float
    events: list[tuple[float, int]]

    @property
    def tokens(self) -> int:
        return self.events[-1][1]

    @property
    def tpot_ms(self) -> float:
        """Time per output token after the first result."""
        (first, before), (last, tokens) = self.events[0], self.events[-1]
        return 1e3 * (last - first) / max(1, tokens - before)


def burst(low: float, high: float, period_s: float) -> Rate:
    """``low`` and ``high`` requests/s in turn, ``period_s`` each."""
    return lambda second: high if int(second / period_s) % 2 else low


def ramp(low: float, high: float, length_s: float) -> Rate:
    """Up from ``low`` to ``high`` in the first half, and down again."""
    return lambda second: low + (high - low) * (1 - abs(2 * second / length_s - 1))


def steady(rate: float) -> Rate:
    return lambda _: rate


def arrivals(rate: Rate, length_s: float, seed: int) -> list[float]:
    """Seeded Poisson arrivals: those of the highest rate, thinned to the rate of the moment."""
    rng = random.Random(seed)
    peak = max(rate(length_s * step / 1000) for step in range(1000))
    times: list[float] = []
    now = rng.expovariate(peak)
    while now < length_s:
        if rng.random() < rate(now) / peak:
            times.append(now)
        now += rng.expovariate(peak)
    return times


def summarise(served: Sequence[Served], deadline_ms: float) -> dict[str, Any]:
    """Throughput from the first arrival to the last token; goodput: requests/s within the deadline.

    ``deadline_ms``: of the mean time per output token of a request.
    """
    start = min(request.arrival for request in served)
    span = max(request.events[-1][0] for request in served) - start
    tpot = sorted(request.tpot_ms for request in served)
    ttft = sorted(1e3 * (request.events[0][0] - request.arrival) for request in served)
    return {
        "requests": len(served),
        "span_s": span,
        "output_tok_s": sum(request.tokens for request in served) / span,
        "tpot_ms_p50": percentile(tpot, 0.5),
        "tpot_ms_p99": percentile(tpot, 0.99),
        "ttft_ms_p50": percentile(ttft, 0.5),
        "ttft_ms_p99": percentile(ttft, 0.99),
        "goodput_req_s": sum(value <= deadline_ms for value in tpot) / span,
    }


def timeline(served: Sequence[Served], bin_s: float = 0.5) -> dict[str, list[float]]:
    """Per bin: output tokens/s, and requests that have arrived and not finished."""
    start = min(request.arrival for request in served)
    bins = math.ceil((max(r.events[-1][0] for r in served) - start) / bin_s) + 1
    rates, load = [0.0] * bins, [0.0] * bins
    for request in served:
        before = 0
        for when, tokens in request.events:
            rates[int((when - start) / bin_s)] += (tokens - before) / bin_s
            before = tokens
        first, last = request.arrival - start, request.events[-1][0] - start
        for index in range(int(first / bin_s), int(last / bin_s) + 1):
            overlap = min(last, (index + 1) * bin_s) - max(first, index * bin_s)
            load[index] += max(0.0, overlap) / bin_s
    return {"bin_s": [bin_s], "output_tok_s": rates, "requests": load}


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
