"""What the user sees: a progress bar with rich in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """Counts measured levels out of ``total`` and prints one line per event."""

    def __init__(self, total: int) -> None:
        self._start = time.monotonic()
        self._total, self._done = total, 0
        self._bar: Any = _rich_bar() if sys.stdout.isatty() else None
        if self._bar is not None:
            self._task = self._bar.add_task("levels", total=total)
            self._bar.start()

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self._start:5.0f} s] {text}"
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, flush=True)

    def level(self, arm: str, level: int, measured: dict[str, Any]) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        accept = measured["accept_len"]
        self.say(
            f"{self._done}/{self._total} {arm:<19} c={level:<4} "
            f"{measured['output_tok_s']:>9.1f} tok/s  tpot {measured['tpot_ms_p50'] or 0:.3f} ms"
            + (f"  accept {accept:.2f}" if accept else "")
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar() -> Any:
    try:
        from rich import progress
    except ImportError:  # a bare GPU machine may not have it
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
