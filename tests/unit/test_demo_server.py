"""Starting a server process: its port, and waiting for it."""

import random
import sys
from pathlib import Path

import pytest

from spec_toggle.demo import server as demo_server
from spec_toggle.demo.server import Engine, Server, ServerError, free_port, is_free

PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_free_port_is_one_that_the_system_gives_to_nobody() -> None:
    lowest = int(PORT_RANGE.read_text().split()[0]) if sys.platform == "linux" else 32768
    drawn = []
    for _ in range(5):
        random.seed(0)  # as engines in this process do
        drawn.append(free_port())
    assert all(1024 <= port < lowest and is_free(port) for port in drawn)
    assert len(set(drawn)) > 1


def test_without_a_free_port_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_server, "is_free", lambda port: False)
    with pytest.raises(ServerError, match=r"no free port .* --port"):
        free_port()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import time; print('loading', flush=True); time.sleep(60)", "was not ready after 5 s"),
        ("print('loading'); raise SystemExit(3)", "exited with code 3"),
    ],
)
def test_a_server_that_does_not_start_says_so_with_its_log(code: str, message: str) -> None:
    server = Server("odd", Path("model"), engine=Engine(("-c", code), (), {}))
    try:
        with pytest.raises(ServerError, match=f"odd server {message}(.|\n)*loading"):
            server.wait_until_ready(5)
    finally:
        server.stop()
