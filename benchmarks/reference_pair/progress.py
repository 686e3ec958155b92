"""Progress of phases that end by the clock."""

from __future__ import annotations

import sys
import time

WIDTH = 30


class ProgressBar:
    """One line that moves on a terminal; anywhere else a line every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, label: str, done: float, total: float) -> None:
        """``done`` of ``total`` seconds are over."""
        now = time.monotonic()
        if now < self._next and done < total:
            return
        self._next = now + (0.2 if self._is_terminal else 5.0)
        filled = int(WIDTH * done / total)
        bar = "#" * filled + "." * (WIDTH - filled)
        start = "\r" if self._is_terminal else ""
        end = "\n" if done >= total or not self._is_terminal else ""
        line = f"{start}[{bar}] {done:.0f}/{total:.0f} s, {label}"
        print(line, end=end, file=sys.stderr, flush=True)
