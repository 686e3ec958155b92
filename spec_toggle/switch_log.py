"""One log line per switch, until there are so many that they hide everything else."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
LINES_PER_WINDOW = 10


class SwitchLog:
    """Writes at most ``lines`` switches per window, and the number of those left out at its end.

    Times are seconds of any steady clock, given by the caller.
    """

    def __init__(self, lines: int = LINES_PER_WINDOW, window_s: float = WINDOW_S) -> None:
        self._lines = lines
        self._window_s = window_s
        self._started: float | None = None
        self._count = 0

    def write(self, line: str, now: float) -> None:
        self.tick(now)
        if self._started is None:
            self._started, self._count = now, 0
        self._count += 1
        if self._count <= self._lines:
            logger.info("Dynamic speculation: %s", line)

    def tick(self, now: float) -> None:
        """Close a window that is over. Cheap: called once per iteration."""
        if self._started is None or now - self._started < self._window_s:
            return
        hidden = self._count - self._lines
        if hidden > 0:
            logger.info(
                "Dynamic speculation: %d more switches in the last %.0f s", hidden, self._window_s
            )
        self._started = None
