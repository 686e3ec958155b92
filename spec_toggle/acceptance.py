"""What is known about the accept length, and when to find out again.

Time is what the cost table says that iterations take, never a clock: ranks must agree.
"""

from __future__ import annotations

import math


class AcceptEstimate:
    """Expected tokens per round and request, from observed rounds.

    An average that begins with ``prior`` and forgets by ``memory`` rounds of one request. Time
    without rounds leaves its value alone, but not how much it weighs against the next rounds: half
    after ``half_life_ms``, and ``LEAST`` rounds in the end.
    """

    LEAST = 4.0

    def __init__(self, prior: float, memory: float = 256, half_life_ms: float = 1250) -> None:
        self._memory = memory
        self._half_life_ms = half_life_ms
        self._tokens = prior * self.LEAST
        self.weight = self.LEAST
        """Rounds of one request that the estimate rests on, after forgetting."""

    @property
    def value(self) -> float:
        return self._tokens / self.weight

    def observe(self, rounds: int, tokens: int) -> None:
        """``rounds``: requests times rounds; ``tokens``: what these rounds gave them."""
        keep = math.exp(-rounds / self._memory)
        self._tokens = self._tokens * keep + tokens
        self.weight = self.weight * keep + rounds

    def age(self, ms: float) -> None:
        """An iteration of ``ms`` went by that showed nothing about acceptance."""
        if self.weight > self.LEAST:
            keep = max(0.5 ** (ms / self._half_life_ms), self.LEAST / self.weight)
            self._tokens *= keep
            self.weight *= keep


class ProbeSchedule:
    """When a short burst of the other mode is allowed, and how long it is.

    A burst comes as soon as what it loses is ``SHARE`` of the time since the last one: a load near
    the break-even is looked at often, one far from it rarely.
    """

    SHARE = 0.01
    # Rounds of one request that show an accept length, and in how many iterations: at batch 1 the
    # few that are affordable, at a large batch those whose results are in before the burst ends.
    WANTED = 64
    SHORTEST, LONGEST = 3, 8
    # In how many rounds the time of one shows.
    TIMING = 5
    # Between two bursts at least: usually, where one should pay by now, and to time a mode.
    PAUSE_MS, AT_ONCE_MS, COST_PAUSE_MS = 2500.0, 250.0, 5000.0
    # After so long without a burst that timed a mode, what was timed may be out of date, and until
    # so many of them have been made: each moves the costs only a part of the way.
    OLD_MS, RENEWALS = 60_000.0, 2
    # What a start counts as: nothing is known yet, so a first burst is worth more.
    CREDIT_MS = 30_000.0

    def __init__(self, first_ms: float = 640.0) -> None:
        """``first_ms``: until the first burst that is to time a mode."""
        self._waited_ms = self.CREDIT_MS
        self._timed_ms = 0.0
        self._renewals = 0
        self._to_first_ms = first_ms

    def wait(self, ms: float) -> None:
        """An iteration of ``ms`` without a burst."""
        self._waited_ms += ms
        self._timed_ms += ms
        self._to_first_ms -= ms
        if self._timed_ms >= self.OLD_MS:
            self._renewals = 0

    @property
    def is_old(self) -> bool:
        return self._renewals < self.RENEWALS

    def rounds(self, batch_size: float) -> int:
        """Length of a burst that is to show the accept length."""
        return min(self.LONGEST, max(self.SHORTEST, math.ceil(self.WANTED / batch_size)))

    def affords(self, lost_ms: float) -> bool:
        """``lost_ms``: what a burst loses if it changes nothing."""
        return lost_ms <= self.SHARE * self._waited_ms

    def is_due(self, lost_ms: float, pays: bool = False) -> bool:
        """``pays``: by what was last seen it wins."""
        pause_ms = self.AT_ONCE_MS if pays else self.PAUSE_MS
        return self._waited_ms >= pause_ms and self.affords(lost_ms)

    def is_due_for_cost(self, lost_ms: float) -> bool:
        is_time = self._to_first_ms <= 0 and self._waited_ms >= self.COST_PAUSE_MS
        return is_time and self.affords(lost_ms)

    def finish(self, is_for_cost: bool) -> None:
        """A burst is over."""
        self._waited_ms = 0.0
        if is_for_cost:
            self._timed_ms = 0.0
            self._renewals += 1
