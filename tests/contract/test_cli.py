"""The ``spec-toggle`` command."""

import pytest

from tests.engine.harness import activate_reference_engine

activate_reference_engine()

from spec_toggle.cli import main  # noqa: E402


def test_check_finds_every_hook(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    shown = capsys.readouterr().out
    assert "0.5.23" in shown and "run_batch" in shown and "is missing" not in shown


def test_check_fails_on_a_release_that_lacks_a_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    monkeypatch.delattr(Scheduler, "on_idle")
    assert main(["check"]) == 1
    assert "missing" in capsys.readouterr().out


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags"]) == 0
    assert "--dynamic-spec-threshold" in capsys.readouterr().out


def test_an_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["tune"])
    assert stopped.value.code == 2
    assert "tune" in capsys.readouterr().err
