"""Server processes: started together, found ready, measured for memory, never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

STAGGER_S = 3.0
_PR_SET_PDEATHSIG = 1

_LOG_FACTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max_total_num_tokens": (r"max_total_num_tokens=(\d+)", int),
    "max_running_requests": (r"max_running_requests=(\d+), context_len", int),
    "chunked_prefill_size": (r"chunked_prefill_size=(-?\d+),", int),
    "toggle": (r"Dynamic speculation is on: (\{.*\});", str),
    "native_graph_batch_sizes": (
        r"captured native DECODE graphs for batch sizes \[([^\]]*)\]",
        str,
    ),
    "native_graph_s": (r"captured native DECODE graphs .* in ([\d.]+) s", float),
    "native_graph_gb": (r"captured native DECODE graphs .* s, (-?[\d.]+) GB", float),
}
_LOG_LINES = re.compile(
    r"CUDA graph end|speculative_adaptive disabled|without a graph|max_running_requests was reduced"
    r"|larger than the profiled value|retract",
    re.IGNORECASE,
)
_DYING = "SIGQUIT received"
_ERROR_LINE = re.compile(r"^.*\b\w*(?:Error|Exception)\b: .*$|^spec-toggle: error.*$", re.MULTILINE)


class ServerError(RuntimeError):
    """A server did not come up, or died; the message ends with its last log lines."""


class Server:
    """One launched server in a process group of its own."""

    def __init__(
        self, arm: str, command: Sequence[str], environment: Mapping[str, str], port: int, log: Path
    ) -> None:
        self.arm = arm
        self.command = list(command)
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self.startup_s: float | None = None
        self._started = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        """Also the id of the process group."""
        return self._process.pid

    def check_alive(self) -> None:
        """Raise ServerError if the server has died or is about to."""
        code = self._process.poll()
        text = self._log_text()
        # A dying server waits a minute or more for core dumps before it exits.
        if code is not None or _DYING in text:
            errors = _ERROR_LINE.findall(text.partition(_DYING)[0])
            what = "is dying" if code is None else f"exited with {code}"
            raise ServerError(f"the server {what}: {(errors or [''])[-1][:300]}\n{self.tail()}")

    def is_ready(self) -> bool:
        """Whether it serves now. Raises ServerError once it has died."""
        self.check_alive()
        try:
            # /health answers by generating a token, so its own warm-up is over too.
            with urllib.request.urlopen(f"{self.url}/health", timeout=25) as response:
                ready = bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
        if ready and self.startup_s is None:
            self.startup_s = time.monotonic() - self._started
        return ready

    def tail(self, lines: int = 15) -> str:
        # SGLang prints its whole configuration in one line.
        return "\n".join(line[:300] for line in self._log_text().splitlines()[-lines:])

    def facts(self) -> dict[str, Any]:
        """What the log says about the effective configuration."""
        return parse_log(self._log_text())

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def has_processes(self) -> bool:
        """Whether any process of the group is left (the zombie leader is reaped first)."""
        self._process.poll()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _die_with_parent() -> None:
    # For a parent that is killed outright and cannot clean up; SGLang's own processes follow.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def parse_log(text: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, (pattern, convert) in _LOG_FACTS.items():
        found = re.search(pattern, text)
        if found:
            facts[name] = convert(found.group(1))
    # The line with the whole configuration names every feature.
    lines = [line for line in text.splitlines() if "server_args=" not in line]
    telling = [line.strip()[:300] for line in lines if _LOG_LINES.search(line)]
    if telling:
        facts["log"] = telling[:20]
    return facts


def wait_ready(
    servers: Iterable[Server], deadline: float, on_event: Callable[[Server, str | None], None]
) -> list[Server]:
    """The servers that came up before ``deadline`` (monotonic), in the given order.

    ``on_event`` hears of each one: with None when it is ready, else with its error.
    """
    servers = list(servers)
    waiting, ready = list(servers), set()
    while waiting:
        for server in list(waiting):
            try:
                if server.is_ready():
                    ready.add(server)
                    on_event(server, None)
                elif time.monotonic() > deadline:
                    raise ServerError(f"not ready in time\n{server.tail()}")
                else:
                    continue
            except ServerError as error:
                stop([server])
                on_event(server, str(error))
            waiting.remove(server)
        if waiting:
            time.sleep(0.5)
    return [server for server in servers if server in ready]


def stop(servers: Iterable[Server], grace_s: float = 8.0) -> None:
    """End every process of every server: politely, then by force."""
    servers = list(servers)
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        left = [server for server in servers if server.has_processes()]
        for server in left:
            server.signal(number)
        end = time.monotonic() + patience
        while any(server.has_processes() for server in left) and time.monotonic() < end:
            time.sleep(0.1)


def free_port(start: int) -> int:
    """The first port from ``start`` that can be bound."""
    for port in range(start, start + 500):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port from {start} on")


def gpu_memory_gb(server: Server) -> float | None:
    """GPU memory of the server's processes in GiB; None where the driver does not tell."""
    total = 0.0
    for line in nvidia_smi("--query-compute-apps=pid,used_memory"):
        pid, _, used = line.partition(",")
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            if os.getpgid(int(pid)) == server.pid:
                total += float(used) / 1024
    return round(total, 2) or None


def gpu_used_gb() -> float | None:
    """Memory in use on the whole first GPU, in GiB."""
    try:
        return float(nvidia_smi("--query-gpu=memory.used")[0]) / 1024
    except (IndexError, ValueError):
        return None


def nvidia_smi(query: str) -> list[str]:
    """The rows of a query; empty without a GPU."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
