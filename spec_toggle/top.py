"""``spec-toggle top``: a live view of load, mode, acceptance and throughput."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spec_toggle.endpoint import Endpoint

BARS = " ▁▂▃▄▅▆▇█"
HISTORY = 60
COLORS = {"spec": "green", "plain": "yellow"}


@dataclass(frozen=True)
class Look:
    """All engines at one moment. ``time_s``: of a steady clock."""

    time_s: float
    engines: list[dict[str, Any]]

    def total(self, name: str) -> int:
        return sum(engine["totals"][name] for engine in self.engines)

    def sum(self, name: str) -> int:
        return sum(engine[name] for engine in self.engines)

    @property
    def modes(self) -> list[str]:
        return [engine["mode"] for engine in self.engines]


class Top:
    """Turns looks at a server into a picture; rates are between the last two looks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._looks: deque[Look] = deque(maxlen=HISTORY)

    def add(self, look: Look) -> None:
        self._looks.append(look)

    def render(self, now: float) -> Panel:
        """``now``: unix seconds, to tell how long a force goes on."""
        look, before = self._looks[-1], self._looks[max(0, len(self._looks) - 2)]
        table = Table.grid(padding=(0, 2))
        table.add_row("mode", self._modes(look))
        table.add_row("forced", _forced(look, now))
        table.add_row("running", f"{look.sum('batch_size')} (boundary {_boundary(look)})")
        table.add_row("queued", str(look.sum("queue_length")))
        table.add_row("accept length", _accept_length(look, before))
        table.add_row("tokens/s", _rates(look, before))
        table.add_row("switches", f"{look.total('switches')} since start")
        legend = Text("running requests; green: rounds, yellow: plain steps", style="dim")
        return Panel(Group(table, Text(), self._chart(), legend), title=f"spec-toggle {self._url}")

    def _modes(self, look: Look) -> Text:
        text = Text(" ").join(Text(m.upper(), style=f"bold {COLORS[m]}") for m in look.modes)
        return text.append(f"  {look.engines[0]['reason']}", style="dim")

    def _chart(self) -> Text:
        highest = max(look.sum("batch_size") for look in self._looks) or 1
        chart = Text()
        for look in self._looks:
            bar = BARS[round(look.sum("batch_size") / highest * (len(BARS) - 1))]
            mode = "plain" if "plain" in look.modes else "spec"
            chart.append(bar, style=COLORS[mode])
        return chart


def _forced(look: Look, now: float) -> str:
    forces = [engine["force"] for engine in look.engines if engine["force"] is not None]
    if not forces:
        return "no"
    return f"{forces[0]['mode'].upper()} for {max(0.0, forces[0]['until'] - now):.0f} s more"


def _boundary(look: Look) -> str:
    boundary = look.engines[0]["boundary"]
    return "-" if boundary is None else f"{boundary:g}"


def _accept_length(look: Look, before: Look) -> str:
    rounds = look.total("verifications") - before.total("verifications")
    tokens = look.total("verified_tokens") - before.total("verified_tokens")
    return f"{tokens / rounds:.2f}" if rounds else "-"


def _rates(look: Look, before: Look) -> str:
    elapsed = look.time_s - before.time_s
    names = ("spec_tokens", "plain_tokens")
    spec, plain = (
        (look.total(name) - before.total(name)) / elapsed if elapsed > 0 else 0.0 for name in names
    )
    return f"{spec + plain:.0f} ({spec:.0f} of rounds, {plain:.0f} of plain steps)"


def show_top(console: Console, endpoint: Endpoint, interval_s: float, count: int | None) -> int:
    """Look every ``interval_s`` until Ctrl-C, or ``count`` times. Raises EndpointError."""
    top = Top(endpoint.url)
    looks = 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                top.add(Look(time.monotonic(), endpoint.read()))
                live.update(top.render(time.time()), refresh=True)
                looks += 1
                if looks == count:
                    return 0
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return 0
