"""The campaign's stages are commands that exist, and one that fails does not stop the next."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest

from benchmarks import campaign
from benchmarks.campaign import STAGES, Stage, main


@pytest.mark.parametrize("name", STAGES)
def test_every_command_is_understood(name: str) -> None:
    for command in STAGES[name].commands:
        module, *arguments = shlex.split(command)
        if module == "pytest":
            assert all(Path(a).exists() for a in arguments if a.startswith("tests/"))
        else:
            importlib.import_module(module)._parser().parse_args(arguments)


def test_a_stage_that_fails_or_hangs_does_not_stop_the_next(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    commands = ("timeit -n 1 -r 1 'import time; time.sleep(60)'", "no_such_module", "this")
    monkeypatch.setitem(campaign.STAGES, "trial", Stage("?", 2, commands))
    assert main(["trial"]) == 1
    lines = capfd.readouterr().out.splitlines()[-3:]
    assert [line.split()[:2] for line in lines[:2]] == [["exit", "124"], ["exit", "1"]]
    assert lines[2].startswith("ok")


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        ("benchmarks.envelope --levels 1", ["--out", "there", "--port", "20000"]),
        ("benchmarks.grid", ["--out", "there"]),
        ("pytest tests/gpu", []),
    ],
)
def test_commands_get_the_options_that_they_know(
    command: str, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def run(command: str, limit_s: int, options: list[str]) -> tuple[int, float]:
        seen.append(options)
        return 0, 0.0

    monkeypatch.setattr(campaign, "_run", run)
    monkeypatch.setitem(campaign.STAGES, "trial", Stage("?", 2, (command,)))
    assert main(["trial", "--out", "there", "--port", "20000"]) == 0
    assert seen == [taken]


def test_stages_whose_files_have_one_name_do_not_share_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outs: list[str] = []

    def run(command: str, limit_s: int, options: list[str]) -> tuple[int, float]:
        outs.extend(options)
        return 0, 0.0

    monkeypatch.setattr(campaign, "_run", run)
    assert main(["envelope", "off-tax"]) == 0
    assert main(["envelope", "off-tax", "--out", "there"]) == 0
    default = ["--out", str(Path("benchmarks/results/off-tax"))]
    assert outs == [*default, "--out", "there", "--out", str(Path("there/off-tax"))]


def test_an_unknown_stage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grids"]) == 2
    assert "unknown stage 'grids'; known: tests" in capsys.readouterr().err
