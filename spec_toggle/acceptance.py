"""What is known about the accept length, and when to find out again.

Time is what the cost table says that iterations take, never a clock: ranks must agree.
"""

from __future__ import annotations

import math


class AcceptEstimate:
    """Expected tokens per round and request, from observed rounds.

    An average that forgets: by ``memory`` rounds of one request while rounds are observed, and by
    half in ``half_life_ms`` of plain iterations, so that an old estimate returns to ``prior``.
    """

    def __init__(
        self,
        prior: float,
        prior_weight: float = 8,
        memory: float = 256,
        half_life_ms: float = 1250,
    ) -> None:
        self._prior = prior
        self._prior_weight = prior_weight
        self._memory = memory
        self._half_life_ms = half_life_ms
        self._tokens = 0.0
        self.weight = 0.0
        """Rounds of one request that the estimate rests on, after forgetting."""

    @property
    def value(self) -> float:
        total = self._prior * self._prior_weight + self._tokens
        return total / (self._prior_weight + self.weight)

    @property
    def seen(self) -> float:
        """What the rounds gave that were observed, however long ago; the prior without any."""
        return self._tokens / self.weight if self.weight else self._prior

    def observe(self, rounds: int, tokens: int) -> None:
        """``rounds``: requests times rounds; ``tokens``: what these rounds gave them."""
        keep = math.exp(-rounds / self._memory)
        self._tokens = self._tokens * keep + tokens
        self.weight = self.weight * keep + rounds

    def age(self, ms: float) -> None:
        """An iteration of ``ms`` went by that showed nothing about acceptance."""
        keep = 0.5 ** (ms / self._half_life_ms)
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
    # Between two bursts at least, and between two that are to time a mode.
    PAUSE_MS, COST_PAUSE_MS = 2500.0, 5000.0
    # What a start counts as: nothing is known yet, so a first burst is worth more.
    CREDIT_MS = 30_000.0

    def __init__(self, first_ms: float = 640.0) -> None:
        """``first_ms``: until the first burst that is to time a mode."""
        self._waited_ms = self.CREDIT_MS
        self._to_first_ms = first_ms

    def wait(self, ms: float) -> None:
        """An iteration of ``ms`` without a burst."""
        self._waited_ms += ms
        self._to_first_ms -= ms

    def rounds(self, batch_size: float) -> int:
        """Length of a burst that is to show the accept length."""
        return min(self.LONGEST, max(self.SHORTEST, math.ceil(self.WANTED / batch_size)))

    def is_due(self, lost_ms: float) -> bool:
        """``lost_ms``: what the burst loses if it changes nothing."""
        return self._waited_ms >= max(self.PAUSE_MS, lost_ms / self.SHARE)

    def is_due_for_cost(self, lost_ms: float) -> bool:
        pause_ms = max(self.COST_PAUSE_MS, lost_ms / self.SHARE)
        return self._to_first_ms <= 0 and self._waited_ms >= pause_ms

    def finish(self) -> None:
        """A burst is over."""
        self._waited_ms = 0.0
