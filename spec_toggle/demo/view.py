"""What the demo shows while it runs: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spec_toggle.demo.snapshot import Snapshot
from spec_toggle.demo.traffic import Traffic

BARS = " ▁▂▃▄▅▆▇█"
HISTORY = 60
RATE_WINDOW_S = 3.0
LINE_INTERVAL_S = 2.0


class View:
    """Use as a context manager; call ``update`` a few times a second."""

    def __init__(self, console: Console, threshold: int) -> None:
        self._console = console
        self._threshold = threshold
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._counts: deque[tuple[float, int]] = deque()
        self._history: deque[tuple[int, bool]] = deque(maxlen=HISTORY)
        self._next_line = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, message: str) -> None:
        # Sample text may look like markup, and one line must stay one line in a log.
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def update(self, snapshot: Snapshot, traffic: Traffic) -> None:
        rate = self._rate(traffic.tokens)
        self._history.append((traffic.in_flight, snapshot.is_speculating))
        if self._live is not None:
            self._live.update(self._panel(snapshot, traffic, rate))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            self.say(
                f"running {traffic.in_flight:3d}  {mode(snapshot):5s}  "
                f"accept {accept_length(snapshot):>4s}  {rate:6.1f} tok/s  "
                f"switches {snapshot.switches}  …{traffic.text[-40:]}"
            )

    def _rate(self, tokens: int) -> float:
        now = time.monotonic()
        self._counts.append((now, tokens))
        while now - self._counts[0][0] > RATE_WINDOW_S and len(self._counts) > 2:
            self._counts.popleft()
        since, before = self._counts[0]
        return (tokens - before) / (now - since) if now > since else 0.0

    def _panel(self, snapshot: Snapshot, traffic: Traffic, rate: float) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_row("running requests", f"{traffic.in_flight} (threshold {self._threshold})")
        color = "green" if snapshot.is_speculating else "yellow"
        table.add_row("mode", Text(mode(snapshot), style=f"bold {color}"))
        table.add_row("accept length", accept_length(snapshot))
        table.add_row("tokens/s", f"{rate:.0f}")
        table.add_row("switches", str(snapshot.switches))
        table.add_row("load", self._chart())
        width = max(20, self._console.width - 28)
        table.add_row("text", Text(traffic.text[-width:], no_wrap=True))
        return Panel(table, title="spec-toggle", subtitle="green: rounds, yellow: plain steps")

    def _chart(self) -> Text:
        highest = max(running for running, _ in self._history) or 1
        chart = Text()
        for running, is_speculating in self._history:
            bar = BARS[round(running / highest * (len(BARS) - 1))]
            chart.append(bar, style="green" if is_speculating else "yellow")
        return chart


def mode(snapshot: Snapshot) -> str:
    return "SPEC" if snapshot.is_speculating else "PLAIN"


def accept_length(snapshot: Snapshot) -> str:
    """SGLang reports 0 for an interval without a round."""
    return f"{snapshot.accept_length:.2f}" if snapshot.accept_length else "-"
