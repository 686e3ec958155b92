"""What a level says of the machine that its server ran on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import host_load
from benchmarks.host_load import HostLoad

SPIN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(code: str, group: int, into: list[subprocess.Popen[bytes]]) -> int:
    """The process id; ``group``: 0 for a group of its own."""
    process = subprocess.Popen([sys.executable, "-c", code], process_group=group)
    into.append(process)
    return process.pid


def test_processes_that_share_a_core_wait_for_it(processes: list[subprocess.Popen[bytes]]) -> None:
    core = min(os.sched_getaffinity(0))
    group = start(SPIN % core, 0, processes)
    start(SPIN % core, group, processes)
    time.sleep(0.3)
    load = HostLoad(group)
    time.sleep(1.0)
    wait = load.shares()["core_wait_share"]
    assert wait is not None and 0.3 < wait <= 1.0


def test_a_process_that_sleeps_waits_for_none(processes: list[subprocess.Popen[bytes]]) -> None:
    group = start(SLEEP, 0, processes)
    time.sleep(0.3)
    load = HostLoad(group)
    time.sleep(0.3)
    wait = load.shares()["core_wait_share"]
    assert wait is not None and wait < 0.05


def test_steal_is_a_share_of_all_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_load, "PROC", tmp_path)
    (tmp_path / "stat").write_text("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    load = HostLoad(os.getpgid(0))
    (tmp_path / "stat").write_text("cpu  40 0 20 120 0 0 0 20 0 0\n")
    assert load.shares() == {"core_wait_share": None, "steal_share": 0.2}


def test_a_machine_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_load, "PROC", tmp_path)
    assert HostLoad(1).shares() == {"core_wait_share": None, "steal_share": None}
