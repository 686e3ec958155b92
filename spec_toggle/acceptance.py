"""What is known about the accept length, and when to find out again."""

from __future__ import annotations

import math

# A load whose break-even is below this share of another's is worth a probe of its own.
EASIER = 0.8


class AcceptEstimate:
    """Expected tokens per round and request, from observed rounds.

    An average that forgets: by ``memory`` rounds of one request while rounds are observed, and by
    half in ``half_life`` plain iterations, so that an old estimate returns to ``prior``. Both are
    counted in iterations, never by a clock: ranks must agree.
    """

    def __init__(
        self, prior: float, prior_weight: float = 8, memory: float = 512, half_life: int = 256
    ) -> None:
        self._prior = prior
        self._prior_weight = prior_weight
        self._memory = memory
        self._keep = 0.5 ** (1 / half_life)
        self._tokens = 0.0
        self.weight = 0.0
        """Rounds of one request that the estimate rests on, after forgetting."""

    @property
    def value(self) -> float:
        total = self._prior * self._prior_weight + self._tokens
        return total / (self._prior_weight + self.weight)

    def observe(self, rounds: int, tokens: int) -> None:
        """``rounds``: requests times rounds; ``tokens``: what these rounds gave them."""
        keep = math.exp(-rounds / self._memory)
        self._tokens = self._tokens * keep + tokens
        self.weight = self.weight * keep + rounds

    def age(self) -> None:
        """One iteration went by that showed nothing about acceptance."""
        self._tokens *= self._keep
        self.weight *= self._keep


class ProbeSchedule:
    """When a short burst of the other mode is allowed, and how long it is.

    At most ``rounds`` of every ``interval`` iterations: below 1 % with these defaults. Each probe
    that only confirms the mode doubles the wait at that load, up to ``max_interval``.
    """

    rounds = 8

    def __init__(self, interval: int = 1024, max_interval: int = 2048, first: int = 128) -> None:
        self._base = interval
        self._max = max_interval
        self.interval = interval
        self._waited = interval - first
        self._refused_at = 0.0

    def wait(self) -> None:
        """One iteration without a probe."""
        self._waited += 1

    def is_due(self, break_even: float = 0.0) -> bool:
        """``break_even``: accept length that pays now. Well below that of the last vain probe, the
        load is another one, and no backing off applies.
        """
        is_easier = break_even < EASIER * self._refused_at
        return self._waited >= (self._base if is_easier else self.interval)

    def finish(self, is_confirmed: bool, break_even: float = 0.0) -> None:
        """A probe is over; ``is_confirmed``: it changed nothing."""
        self._waited = 0
        self._refused_at = break_even if is_confirmed else 0.0
        self.interval = min(self.interval * 2, self._max) if is_confirmed else self._base
