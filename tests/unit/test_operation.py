"""The commands against a small stand-in for the server: what they send, show and refuse."""

import copy
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console

from spec_toggle.cli import main
from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.state import describe
from spec_toggle.top import Look, Top

STATE = describe(Controller.from_config(DynamicSpecConfig()))


class StandIn(HTTPServer):
    """Answers ``/dynamic_spec`` with one engine's state; ``status`` and ``answer`` can be set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.answer = 200, json.dumps({"engines": [STATE]})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer.encode())

    do_POST = do_GET

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    monkeypatch.setenv("SPEC_TOGGLE_URL", stand_in.url)
    monkeypatch.delenv("SPEC_TOGGLE_API_KEY", raising=False)
    thread = threading.Thread(target=stand_in.serve_forever, args=(0.01,))
    thread.start()
    yield stand_in
    stand_in.shutdown()
    thread.join()
    stand_in.server_close()


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["set", "threshold=24", "dwell=8"], {"threshold": 24, "dwell": 8}),
        (["set", "margin=0.05"], {"margin": 0.05}),
        (["set", "draft_sync=off"], {"draft_sync": "off"}),
        (["force", "plain", "--seconds", "60"], {"force": "plain", "seconds": 60}),
        (["force", "none"], {"force": "none"}),
    ],
)
def test_what_a_command_sends(
    server: StandIn, arguments: list[str], body: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--api-key", "secret"]) == 0
    ((path, headers, sent),) = server.requests
    assert path == "/dynamic_spec" and headers["Authorization"] == "Bearer secret"
    assert json.loads(sent) == body
    assert "SPEC (start)" in capsys.readouterr().out


def test_status_shows_the_state_in_words_or_as_json(
    server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "threshold 32" in shown and "0 running, 0 queued" in shown
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"engines": [STATE]}
    assert "Authorization" not in server.requests[-1][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "--url", "localhost:30000"], "is not a URL"),
        (["status", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["set"], "the following arguments are required: NAME=VALUE"),
        (["set", "threshold"], "'threshold' is not a setting"),
        (["set", "=4"], "'=4' is not a setting"),
        (["force", "fast"], "invalid choice: 'fast'"),
        (["force", "plain"], "force plain needs --seconds N"),
        (["force", "plain", "--seconds", "soon"], "invalid float value: 'soon'"),
        (["top", "--interval", "0"], "--interval 0.0 is too short"),
        (["top", "--interval", "nan"], "--interval nan is too short"),
        (["top", "--count", "0"], "--count 0 shows nothing"),
        (["tune"], "invalid choice: 'tune'"),
        ([], "required: command"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    server: StandIn, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(arguments, message, capsys)
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (400, '{"error": {"message": "threshold -1 is out of range."}}', "threshold -1 is out"),
        (401, '{"error": "Unauthorized"}', "Give the server's admin key with --api-key"),
        (404, "", "started with --enable-dynamic-spec?"),
        (500, "Internal Server Error", "HTTP status 500"),
        (200, "<html>", "no usable answer"),
        (200, '{"other": 1}', "no usable answer"),
        (200, '{"engines": []}', "no usable answer"),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["set", "dwell=1"], ["force", "none"], ["top"]])
def test_what_the_server_refuses_is_one_line_and_exit_code_2(
    server: StandIn,
    command: list[str],
    status: int,
    answer: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.status, server.answer = status, answer
    check_refused(command, message, capsys)


def test_no_server_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(["status", "--url", "http://127.0.0.1:9"], "Connection refused", capsys)


def check_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if line.strip()]
    assert line.startswith("spec-toggle: error: ") and message in line


def test_top_looks_as_often_as_asked(server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--count", "2", "--interval", "0.1"]) == 0
    assert len(server.requests) == 2
    assert "boundary 32" in capsys.readouterr().out


def look(time_s: float, **changes: Any) -> Look:
    state = copy.deepcopy(STATE)
    for name, value in changes.items():
        (state["totals"] if name in state["totals"] else state)[name] = value
    return Look(time_s, [state])


def test_top_shows_rates_between_two_looks() -> None:
    top = Top("http://server:30000")
    top.add(look(10.0, batch_size=4, verifications=10, verified_tokens=20, spec_tokens=20))
    top.add(
        look(
            12.0,
            batch_size=40,
            queue_length=3,
            mode="plain",
            verifications=20,
            verified_tokens=45,
            spec_tokens=60,
            plain_tokens=160,
            force={"mode": "plain", "until": 130.0},
        )
    )
    console = Console(width=80, record=True)
    console.print(top.render(now=100.0))
    text = console.export_text()
    for shown in (
        "PLAIN",
        "PLAIN for 30 s more",
        "40 (boundary 32)",
        "2.50",
        "100 (20 of rounds, 80 of plain steps)",
        "▁█",
    ):
        assert shown in text
