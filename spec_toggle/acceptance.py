"""What is known about the accept length, and when to find out again."""

from __future__ import annotations

import math


class AcceptEstimate:
    """Expected tokens per round and request, from observed rounds.

    An average that forgets: by ``memory`` rounds of one request while rounds are observed, and by
    half in ``half_life`` plain iterations, so that an old estimate returns to ``prior``. Both are
    counted in iterations, never by a clock: ranks must agree.
    """

    def __init__(
        self, prior: float, prior_weight: float = 8, memory: float = 256, half_life: int = 256
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

    @property
    def seen(self) -> float:
        """What the rounds gave that were observed, however long ago; the prior without any."""
        return self._tokens / self.weight if self.weight else self._prior

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

    A burst that is to show the accept length comes as soon as what it loses is ``SHARE`` of the
    time since the last one: a load near the break-even is looked at often, one far from it rarely.
    """

    SHARE = 0.01
    # Rounds of one request that show an accept length, and in how many iterations: at batch 1 the
    # few that are affordable, at a large batch those whose results are in before the burst ends.
    WANTED = 64
    SHORTEST, LONGEST = 3, 8
    # Iterations between two bursts at least, and between two that are to time a mode.
    PAUSE, COST_PAUSE = 512, 1024

    def __init__(self, first: int = 128) -> None:
        """``first``: iterations until the first burst that is to time a mode."""
        self._waited = self.COST_PAUSE - first

    def wait(self) -> None:
        """One iteration without a burst."""
        self._waited += 1

    def rounds(self, batch_size: float) -> int:
        """Length of a burst that is to show the accept length."""
        return min(self.LONGEST, max(self.SHORTEST, math.ceil(self.WANTED / batch_size)))

    def is_due(self, lost: float) -> bool:
        """``lost``: what the burst loses if it changes nothing, in iterations of the mode that
        runs."""
        return self._waited >= max(self.PAUSE, lost / self.SHARE)

    def is_due_for_cost(self) -> bool:
        return self._waited >= self.COST_PAUSE

    def finish(self) -> None:
        """A burst is over."""
        self._waited = 0
