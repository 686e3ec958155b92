"""How much a server was kept from the machine's cores while it was measured.

An iteration that the host launches late is a late token, on a GPU that has nothing to do meanwhile.
A level whose server waited for a core, or whose machine was taken away, says little of the arm.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_STEAL = 7  # column of /proc/stat: user nice system idle iowait irq softirq steal


class HostLoad:
    """From its creation on, of the processes of one group."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._start = time.monotonic()
        self._delays = dict(_run_delays(group))
        self._ticks = _ticks()

    def shares(self) -> dict[str, float | None]:
        """``core_wait_share``: of the time that the main thread of a process could run but had no
        core, the largest; ``steal_share``: of all cores' time that went to other machines.

        None where the kernel does not tell.
        """
        waits = [
            delay - self._delays[pid]
            for pid, delay in _run_delays(self._group)
            if pid in self._delays
        ]
        # After the delays are read, so that no share is above 1.
        seconds = time.monotonic() - self._start
        spent = [now - before for now, before in zip(_ticks(), self._ticks, strict=True)]
        return {
            "core_wait_share": round(max(waits) / seconds, 4) if waits else None,
            "steal_share": round(spent[_STEAL] / sum(spent), 4) if sum(spent) else None,
        }


def _run_delays(group: int) -> Iterator[tuple[int, float]]:
    """Of each process: its main thread's time on a run queue so far, s.

    Source: the second field of /proc/<pid>/schedstat, in ns.
    """
    for folder in PROC.iterdir() if PROC.is_dir() else ():
        # Processes end at any time.
        with contextlib.suppress(OSError, ValueError, IndexError):
            if folder.name.isdigit() and os.getpgid(int(folder.name)) == group:
                fields = (folder / "schedstat").read_text().split()
                yield int(folder.name), int(fields[1]) / 1e9


def _ticks() -> list[int]:
    """Time of all cores so far by what it went to; empty where there is no /proc."""
    try:
        first = (PROC / "stat").read_text().splitlines()[0]
    except OSError:
        return []
    return [int(field) for field in first.split()[1:9]]
