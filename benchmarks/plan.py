"""What to run, in which order, and whether there is time for it: pure functions and a clock."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

# Output tokens per second of a Llama-8B without speculation on one H200: only how many requests
# make a level last long enough, the same for every arm.
_PLAIN_TOK_S = {1: 209, 4: 807, 16: 2857, 32: 4973, 64: 8008, 128: 11470, 256: 14264}

LEVEL_ESTIMATE_S = 15.0
STOP_RESERVE_S = 15.0


class Budget:
    """Seconds of this command; ``None`` is without a limit."""

    def __init__(self, total_s: float | None) -> None:
        self._total_s = math.inf if total_s is None else total_s
        self._start = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """Until servers have to be stopped."""
        return self._total_s - STOP_RESERVE_S - self.elapsed_s

    def allows(self, seconds: float) -> bool:
        return seconds <= self.left_s


def requests_for(level: int, output_len: int, seconds: float, waves: int | None) -> int:
    """Requests of a level: ``waves`` per worker, or as many as last about ``seconds``.

    At least two waves: with one, all requests would only ever be prefilled together.
    """
    if waves is None:
        nearest = min(_PLAIN_TOK_S, key=lambda known: abs(math.log2(known / level)))
        tokens = seconds * _PLAIN_TOK_S[nearest]
        waves = max(2, round(tokens / output_len / level))
    return level * waves


def estimate_level_s(last_s: float | None) -> float:
    """A guess for an arm's next level from its last: each about doubles the concurrency."""
    return LEVEL_ESTIMATE_S if last_s is None else 2 * last_s + 5


def make_groups(arms: Sequence[str], parallel: int) -> list[list[str]]:
    """Arms whose servers are up together, ``parallel`` at most, in the given order.

    ``none_again`` takes no server of its own in a group that has ``none``: it measures that one a
    second time.
    """
    groups: list[list[str]] = []
    servers = parallel
    for arm in arms:
        is_shared = bool(groups) and shares_server(arm, groups[-1])
        if not is_shared:
            if servers == parallel:
                groups.append([])
                servers = 0
            servers += 1
        groups[-1].append(arm)
    return groups


def shares_server(arm: str, group: Sequence[str]) -> bool:
    return arm == "none_again" and "none" in group
