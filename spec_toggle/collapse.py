"""Noticing a draft that helps nobody: rounds whose every draft token is refused."""

from __future__ import annotations

# Rounds in a row without one accepted draft token. A draft that fits has one within a few rounds.
COLLAPSE_ROUNDS = 200


class AcceptanceWatch:
    """Counts rounds in a row at an accept length of exactly 1.00."""

    def __init__(self, limit: int = COLLAPSE_ROUNDS) -> None:
        self._limit = limit
        self.refused_rounds = 0

    def observe(self, requests: int, tokens: int) -> bool:
        """``tokens`` that a round gave its ``requests``. True after each further ``limit`` rounds.

        A round without a live request says nothing.
        """
        if requests == 0:
            return False
        if tokens > requests:
            self.refused_rounds = 0
            return False
        self.refused_rounds += 1
        return self.refused_rounds % self._limit == 0

    @property
    def is_first_notice(self) -> bool:
        return self.refused_rounds == self._limit
