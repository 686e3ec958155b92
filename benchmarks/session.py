"""One command's run: start groups of servers, measure them level by level, stop them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import Setup, arm_flags, server_command, server_environment
from benchmarks.client import Job, encode_job
from benchmarks.host_load import HostLoad
from benchmarks.plan import Budget, estimate_level_s, make_groups, requests_for, shares_server
from benchmarks.progress import Progress
from benchmarks.results import ResultFile
from benchmarks.servers import (
    STAGGER_S,
    Server,
    ServerError,
    free_port,
    gpu_memory_gb,
    gpu_used_gb,
    stop,
    wait_ready,
)

# Far apart: SGLang derives further ports from its own.
_PORT_STEP = 1000
_MAX_FAILURES = 2


@dataclass(frozen=True)
class Options:
    """How to run, as opposed to what is measured."""

    parallel: int
    seconds: float
    waves: int | None
    start_estimate_s: float
    start_timeout_s: float
    level_timeout_s: float
    base_port: int
    seed: int
    log_dir: Path


class Session:
    """Owns the servers of a run. Use as a context manager: leaving it stops them all."""

    def __init__(self, setup: Setup, options: Options, results: ResultFile, budget: Budget) -> None:
        self._setup, self._options = setup, options
        self._results, self._budget = results, budget
        self._servers: list[Server] = []
        self._last_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._progress: Progress
        self.has_errors = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        # A second signal must not leave servers behind.
        kept = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGINT)}
        stop(self._servers)
        for number, handler in kept.items():
            signal.signal(number, handler)

    def run(self, arms: list[str]) -> None:
        pending = [arm for arm in arms if self._missing(arm)]
        self._progress = Progress(sum(len(self._missing(arm)) for arm in pending))
        try:
            for group in make_groups(pending, self._options.parallel):
                if not self._run_group(group):
                    return
        finally:
            self._progress.close()

    def _missing(self, arm: str) -> list[int]:
        return self._results.missing(arm, self._setup.levels)

    def _run_group(self, group: list[str]) -> bool:
        """Returns whether there was time for all of it."""
        started = [arm for arm in group if not shares_server(arm, group)]
        needed_s = self._options.start_estimate_s + estimate_level_s(None) * len(started)
        if not self._budget.allows(needed_s):
            self._progress.say(f"no time left to start {', '.join(group)}")
            return False
        up = self._start(started)
        again = [arm for arm in group if arm not in started and "none" in up]
        if again:
            same = {"same_server_as": "none"}
            self._results.record_server(again[0], [], config=same)
        for arms in (list(up), again):
            for level in self._setup.levels:
                for arm in arms:
                    server = up.get("none" if arm in again else arm)
                    if server is None or level not in self._missing(arm):
                        continue
                    if not self._measure(arm, level, server, up):
                        return False
        stop(up.values())
        return True

    def _start(self, arms: list[str]) -> dict[str, Server]:
        used_before = gpu_used_gb()
        servers = []
        for index, arm in enumerate(arms):
            if index:
                time.sleep(STAGGER_S)
            port = free_port(self._options.base_port + index * _PORT_STEP)
            command = server_command(arm, self._setup, port)
            log = self._options.log_dir / f"{self._results.path.stem}.{arm}.log"
            server = Server(arm, command, server_environment(self._setup), port, log)
            self._servers.append(server)
            servers.append(server)
            self._progress.say(f"starting {arm} (pid {server.pid}, port {port})")
        patience = min(self._options.start_timeout_s, self._budget.left_s)
        ready = wait_ready(servers, time.monotonic() + patience, self._on_start)
        for server in ready:
            self._record(server, arms, used_before if len(servers) == 1 else None)
        return {server.arm: server for server in ready}

    def _on_start(self, server: Server, error: str | None) -> None:
        if error is None:
            self._progress.say(f"{server.arm} is up after {server.startup_s:.0f} s")
        else:
            self._fail(server.arm, f"start failed: {error}")

    def _record(self, server: Server, started: list[str], used_before: float | None) -> None:
        memory = gpu_memory_gb(server)
        used = gpu_used_gb()
        if memory is None and used is not None and used_before is not None:
            memory = round(used - used_before, 2)
        facts = {**server.facts(), "started_with": started}
        if len(started) > 1:
            # Logged as a difference of the whole GPU's free memory: neighbours are in it.
            facts.pop("native_graph_gb", None)
        self._results.record_server(
            server.arm,
            arm_flags(server.arm, self._setup),
            startup_s=round(server.startup_s or 0, 1),
            gpu_mem_gb=memory,
            config={**facts, "command": ["python3", *server.command[1:]]},
        )

    def _measure(self, arm: str, level: int, server: Server, up: dict[str, Server]) -> bool:
        """Returns False when the level would not end in time."""
        estimate_s = estimate_level_s(self._last_s.get(arm))
        if not self._budget.allows(estimate_s):
            self._progress.say(f"no time left for {arm} at {level} (about {estimate_s:.0f} s)")
            return False
        begin, load = time.monotonic(), HostLoad(server.pid)
        try:
            server.check_alive()
            measured = self._run_client(arm, level, server) | load.shares()
        except ServerError as error:
            self._fail(arm, f"at concurrency {level}: {error}")
            self._failures[arm] = self._failures.get(arm, 0) + 1
            if server.has_processes() and self._failures[arm] < _MAX_FAILURES:
                return True
            stop([server])
            del up[server.arm]
            return True
        self._last_s[arm] = time.monotonic() - begin
        self._results.record_level(arm, level, measured)
        self._progress.level(arm, level, measured)
        return True

    def _run_client(self, arm: str, level: int, server: Server) -> dict[str, Any]:
        setup, options = self._setup, self._options
        # The second look at the same server must not find its prompts in the prefix cache.
        phase = "again" if arm == "none_again" else "first"
        timeout_s = min(options.level_timeout_s, self._budget.left_s)
        job = Job(
            url=server.url,
            concurrency=level,
            requests=requests_for(level, setup.output_len, options.seconds, options.waves),
            input_len=setup.input_len,
            output_len=setup.output_len,
            vocab_size=setup.models.vocab_size,
            seed=f"{options.seed}-{phase}-{level}",
            timeout_s=timeout_s,
            prompts=setup.models.prompts,
        )
        command = [sys.executable, "-m", "benchmarks.client"]
        try:
            done = subprocess.run(
                command, input=encode_job(job), capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise ServerError(f"no end within {timeout_s:.0f} s\n{server.tail()}") from None
        if done.returncode:
            raise ServerError(f"{done.stderr[-1000:]}\n{server.tail()}")
        measured: dict[str, Any] = json.loads(done.stdout)
        return measured

    def _fail(self, arm: str, error: str) -> None:
        self.has_errors = True
        self._results.record_error(arm, error)
        self._progress.say(f"{arm}: {error}")
