"""Arrivals and accept lengths over time: synthetic from a seed, or recorded in a file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Arrival:
    at_ms: float
    input_len: int
    output_len: int


@dataclass(frozen=True)
class Trace:
    """``accept``: (from ms on, tokens per round), the first from 0."""

    name: str
    arrivals: tuple[Arrival, ...]
    accept: tuple[tuple[float, float], ...]

    def accept_at(self, now_ms: float) -> float:
        return [value for start, value in self.accept if start <= now_ms][-1]

    @classmethod
    def read(cls, path: Path) -> Trace:
        """A recorded trace: ``{"arrivals": [[ms, in, out], ...], "accept": [[ms, n], ...]}``."""
        document = json.loads(path.read_text())
        arrivals = sorted(
            (Arrival(*entry) for entry in document["arrivals"]), key=lambda a: a.at_ms
        )
        return cls(path.stem, tuple(arrivals), tuple(map(tuple, document["accept"])))


def _poisson(
    rng: random.Random, seconds: float, rate: Callable[[float], float]
) -> Iterator[Arrival]:
    """Arrivals at ``rate(second)`` per second."""
    now = 0.0
    while True:
        now += rng.expovariate(max(0.1, rate(now)))
        if now >= seconds:
            return
        yield Arrival(1000 * now, rng.randint(64, 1024), rng.randint(32, 512))


def synthetic(seconds: float, seed: int) -> list[Trace]:
    """Bursts, a ramp up and down, a steady load near the break-even, and drifting acceptance."""
    end_ms = 1000 * seconds

    def trace(
        name: str, rate: Callable[[float], float], accept: tuple[tuple[float, float], ...]
    ) -> Trace:
        rng = random.Random(f"{name} {seed}")
        return Trace(name, tuple(_poisson(rng, seconds, rate)), accept)

    steady = ((0.0, 2.6),)
    drift = tuple((end_ms * part / 6, value) for part, value in enumerate((2.6, 1.3, 3.2) * 2))
    return [
        trace("burst", lambda now: 40.0 if now % 20 < 5 else 1.0, steady),
        trace("ramp", lambda now: 40 * (1 - abs(2 * now / seconds - 1)), steady),
        trace("poisson", lambda now: 18.0, steady),
        trace("low-acceptance", lambda now: 6.0, ((0.0, 1.2),)),
        trace("acceptance-drift", lambda now: 8.0, drift),
    ]
