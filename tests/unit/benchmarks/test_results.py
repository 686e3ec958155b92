"""The result file: what it keeps, what a resumed run skips, what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import session as session_module
from benchmarks.arms import Setup, arm_flags
from benchmarks.plan import Budget
from benchmarks.results import ResultFile, file_name, make_provenance
from benchmarks.session import Options, Session

LEVEL = {"output_tok_s": 100.0, "tpot_ms_p50": 1.0, "accept_len": None}


def provenance(**changes: Any) -> dict[str, Any]:
    return {"sglang": "0.5.23", "gpu": "H200", "input_len": 256, "time": "t", **changes}


def test_levels_survive_a_new_session(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    first = ResultFile(path, provenance(time="one"))
    first.record_server("none", [], startup_s=1.0, config={"command": ["x"]})
    first.record_level("none", 64, LEVEL)
    first.record_level("none", 4, LEVEL)
    second = ResultFile(path, provenance(time="two"))
    second.record_level("none", 128, LEVEL)
    document = json.loads(path.read_text())
    assert list(document["arms"]["none"]["levels"]) == ["4", "64", "128"]
    assert document["arms"]["none"]["levels"]["64"]["session"] == 0
    assert document["arms"]["none"]["levels"]["128"]["session"] == 1
    assert [s["time"] for s in document["sessions"]] == ["one", "two"]
    assert document["provenance"]["time"] == "one"
    assert second.missing("none", (1, 4, 64, 128)) == [1]
    assert ResultFile(path, provenance(), fresh=True).missing("none", (4,)) == [4]


def test_another_machine_or_configuration_is_refused(tmp_path: Path, setup: Setup) -> None:
    path = tmp_path / "r.json"
    result = ResultFile(path, provenance())
    flags = arm_flags("toggle", setup)
    result.record_server("toggle", flags)
    result.record_level("toggle", 1, LEVEL)
    with pytest.raises(ValueError, match="gpu"):
        ResultFile(path, provenance(gpu="H100"))
    moved = [flag.replace(str(setup.models.draft.parent), "/elsewhere") for flag in flags]
    ResultFile(path, provenance()).claim("toggle", moved)
    with pytest.raises(ValueError, match="toggle"):
        ResultFile(path, provenance()).claim("toggle", [*flags[:-1], "off"])


def test_a_run_is_resumed_with_the_same_flags_of_every_server(tmp_path: Path, setup: Setup) -> None:
    path = tmp_path / "r.json"
    result = ResultFile(path, make_provenance(setup))
    result.record_level("none", 1, LEVEL)
    more_levels = replace(setup, levels=(*setup.levels, 512))  # and so a larger pool
    assert ResultFile(path, make_provenance(more_levels)).missing("none", (1, 512)) == [512]
    with pytest.raises(ValueError, match="--disable-radix-cache"):
        ResultFile(path, make_provenance(replace(setup, extra=("--disable-radix-cache",))))


def test_an_error_is_kept_until_the_arm_comes_up(tmp_path: Path) -> None:
    result = ResultFile(tmp_path / "r.json", provenance())
    result.record_error("static", "start failed: out of memory")
    assert json.loads(result.path.read_text())["arms"]["static"]["error"].endswith("memory")
    result.record_server("static", [])
    assert "error" not in json.loads(result.path.read_text())["arms"]["static"]


def test_file_name_tells_what_was_measured(setup: Setup) -> None:
    name = file_name(setup, "0.5.23", "NVIDIA H200")
    assert name == "envelope-0.5.23-h200-triton-dummy-8b-256x256-3-1-4-eager-2.6.json"
    two = replace(setup, extra=("--tp-size", "2"))
    name = file_name(two, "0.5.23", "NVIDIA H200")
    assert name == "envelope-0.5.23-h200-triton-dummy-8b-256x256-3-1-4-eager-tp2-2.6.json"


def test_provenance_without_git(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_TOGGLE_COMMIT", "abc123-dirty")
    record = make_provenance(setup)
    assert (record["commit"], record["dirty"]) == ("abc123", True)
    assert record["spec"] == {"steps": 3, "topk": 1, "draft_tokens": 4}


class FakeServer:
    """A server that is up at once. ``broken`` arms never come up."""

    broken: tuple[str, ...] = ()

    def __init__(
        self, arm: str, command: list[str], environment: Any, port: int, log: Path
    ) -> None:
        self.arm, self.command, self.url = arm, command, f"http://127.0.0.1:{port}"
        self.pid, self.startup_s = 1, 2.0

    def check_alive(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {}

    def has_processes(self) -> bool:
        return True


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """Replaces servers and client; holds (arm, level, url) in the order measured."""
    order: list[tuple[str, int, str]] = []

    def run_client(self: Session, arm: str, level: int, server: FakeServer) -> dict[str, Any]:
        order.append((arm, level, server.url))
        return dict(LEVEL)

    def wait_ready(servers: list[FakeServer], deadline: float, on_event: Any) -> list[FakeServer]:
        for server in servers:
            on_event(server, "no memory" if server.arm in FakeServer.broken else None)
        return [server for server in servers if server.arm not in FakeServer.broken]

    monkeypatch.setattr(session_module, "Server", FakeServer)
    monkeypatch.setattr(session_module, "STAGGER_S", 0.0)
    monkeypatch.setattr(session_module, "wait_ready", wait_ready)
    monkeypatch.setattr(session_module, "stop", lambda servers: None)
    monkeypatch.setattr(session_module, "gpu_memory_gb", lambda server: 1.0)
    monkeypatch.setattr(session_module, "gpu_used_gb", lambda: None)
    monkeypatch.setattr(Session, "_run_client", run_client)
    return order


def run(setup: Setup, path: Path, arms: list[str], budget_s: float | None = None) -> Session:
    options = Options(2, 6.0, None, 100.0, 300.0, 120.0, 30000, 0, path.parent)
    with Session(setup, options, ResultFile(path, provenance()), Budget(budget_s)) as session:
        session.run(arms)
    return session


def test_a_group_is_measured_level_by_level(
    setup: Setup, tmp_path: Path, measured: list[tuple[str, int, str]]
) -> None:
    run(setup, tmp_path / "r.json", ["none", "static", "none_again"])
    assert [entry[:2] for entry in measured] == [
        *[("none", 1), ("static", 1), ("none", 64), ("static", 64), ("none", 256), ("static", 256)],
        *[("none_again", 1), ("none_again", 64), ("none_again", 256)],
    ]
    assert measured[-1][2] == measured[0][2]
    arms = json.loads((tmp_path / "r.json").read_text())["arms"]
    assert arms["none_again"]["config"]["same_server_as"] == "none"


def test_a_rerun_measures_only_what_is_missing(
    setup: Setup, tmp_path: Path, measured: list[tuple[str, int, str]]
) -> None:
    path = tmp_path / "r.json"
    done = ResultFile(path, provenance())
    for level in (1, 64):
        done.record_level("none", level, LEVEL)
    for level in setup.levels:
        done.record_level("static", level, LEVEL)
    run(setup, path, ["none", "static", "toggle"])
    assert [e[:2] for e in measured] == [
        ("toggle", 1),
        ("toggle", 64),
        ("none", 256),
        ("toggle", 256),
    ]
    measured.clear()
    run(setup, path, ["none", "static", "toggle"])
    assert measured == []


def test_a_broken_arm_does_not_stop_the_others(
    setup: Setup,
    tmp_path: Path,
    measured: list[tuple[str, int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeServer, "broken", ("static",))
    session = run(setup, tmp_path / "r.json", ["none", "static", "toggle"])
    assert session.has_errors
    assert {arm for arm, *_ in measured} == {"none", "toggle"}
    assert "no memory" in json.loads((tmp_path / "r.json").read_text())["arms"]["static"]["error"]


def test_nothing_is_started_that_cannot_finish(
    setup: Setup, tmp_path: Path, measured: list[tuple[str, int, str]]
) -> None:
    session = run(setup, tmp_path / "r.json", ["none"], budget_s=60)
    assert measured == [] and not session.has_errors
