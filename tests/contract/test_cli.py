"""The ``spec-toggle`` command."""

from pathlib import Path

import pytest

from tests.engine.harness import activate_reference_engine

activate_reference_engine()

from spec_toggle.cli import main  # noqa: E402
from spec_toggle.source import Source  # noqa: E402


def test_check_finds_every_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "0.5.23" in shown and "run_batch" in shown and "all found" in shown


def test_check_fails_on_a_release_that_lacks_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sglang").mkdir()
    monkeypatch.setattr("spec_toggle.cli.installed_source", lambda: Source(tmp_path))
    assert main(["check"]) == 1
    shown = capsys.readouterr().out
    assert "is missing" in shown and "places differ" in shown


def test_check_without_sglang_fails_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "spec-toggle: error: SGLang is not installed in this environment."
    ]


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags"]) == 0
    assert "--dynamic-spec-threshold" in capsys.readouterr().out


def test_an_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tune"])
    assert stopped.value.code == 2
    assert "tune" in capsys.readouterr().err
