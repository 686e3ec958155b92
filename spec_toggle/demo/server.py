"""A real SGLang HTTP server, on the reference CPU engine, in a process group of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 15.0


class Engine(NamedTuple):
    """How a server is run: a module that starts ``sglang`` (none: itself), flags, environment."""

    launcher: tuple[str, ...]
    flags: tuple[str, ...]
    environment: dict[str, str]


CPU = Engine(
    launcher=("-m", "spec_toggle.reference.launch"),
    flags=(
        *("--device", "cpu", "--attention-backend", "intel_amx", "--sampling-backend", "pytorch"),
        *("--dtype", "float32", "--max-total-tokens", "16384", "--max-running-requests", "16"),
        *("--mem-fraction-static", "0.5", "--random-seed", "0", "--enable-metrics"),
        # An idle scheduler would keep a core busy.
        *("--decode-log-interval", "10", "--sleep-on-idle"),
    ),
    environment={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
)


class ServerError(RuntimeError):
    """A server that does not start or does not live; the message ends with its log's last lines."""


def free_port() -> int:
    """A port nobody else is about to be given: a server binds it only once its model is loaded.

    Below those that the system hands out (Linux: from 32768) to whoever connects or asks for any.
    Raises ServerError if 100 ports drawn are busy.
    """
    # Not ``random``'s own generator: engines in this process seed it.
    for port in random.SystemRandom().sample(range(10_000, 30_000), 100):
        if is_free(port):
            return port
    raise ServerError("no free port from 10000 to 29999. Name one with --port.")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server will bind: a port in TIME_WAIT is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def toggle_arguments(draft: Path, threshold: int, dwell: int) -> list[str]:
    return [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4", "--enable-dynamic-spec"),
        *("--dynamic-spec-threshold", str(threshold), "--dynamic-spec-dwell", str(dwell)),
    ]


def server_command(target: Path, arguments: Sequence[str], engine: Engine = CPU) -> list[str]:
    sglang = Path(sys.executable).with_name("sglang")
    launcher = [sys.executable, *engine.launcher]
    return [*launcher, str(sglang), "serve", str(target), *engine.flags, *arguments]


def server_environment(engine: Engine = CPU) -> dict[str, str]:
    environment = {**os.environ, **engine.environment}
    # A configuration left by a server in this process is not for the new one.
    environment.pop("SPEC_TOGGLE_CONFIG", None)
    return environment


class Server:
    """Starts at once; use ``is_ready`` to wait, and ``stop`` in a ``finally``."""

    def __init__(
        self,
        name: str,
        target: Path,
        arguments: Sequence[str] = (),
        port: int | None = None,
        engine: Engine = CPU,
    ) -> None:
        self.name = name
        self.port = free_port() if port is None else port
        self.url = f"http://{HOST}:{self.port}"
        if not is_free(self.port):
            raise ServerError(f"port {self.port} is busy. Free it, or choose another with --port.")
        handle, path = tempfile.mkstemp(prefix=f"spec-toggle-{name}-", suffix=".log")
        self.log_path = Path(path)
        where = ["--host", HOST, "--port", str(self.port)]
        command = server_command(target, [*arguments, *where], engine)
        with os.fdopen(handle, "w") as log:
            # A session of its own: Ctrl-C reaches the demo only, which then stops the whole group.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=server_environment(engine),
                start_new_session=True,
            )

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def failure(self, what: str) -> ServerError:
        tail = "\n".join(f"  | {line}" for line in self.log().splitlines()[-15:])
        return ServerError(f"the {self.name} server {what}. End of {self.log_path}:\n{tail}")

    def check_alive(self) -> None:
        """Raise ServerError if the server has exited."""
        code = self._process.poll()
        if code is not None:
            raise self.failure(f"exited with code {code}")

    def is_ready(self) -> bool:
        """One look at ``/health``. Raises ServerError if the server has exited."""
        self.check_alive()
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return int(response.status) == 200
        except (urllib.error.URLError, OSError):
            return False

    def wait_until_ready(self, limit_s: float) -> None:
        """Raise ServerError, with the end of the log, if the server exits or is not ready in time.

        ``limit_s``: seconds from now.
        """
        deadline = time.monotonic() + limit_s
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {limit_s:.0f} s")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server's whole process group: politely first, then for certain."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        # Workers may outlive their leader: the group is gone only after this.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
