"""The contract against the wheels of several releases, read without importing them."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spec_toggle import releases
from spec_toggle.assumptions import requirements
from spec_toggle.contract import (
    SCHEDULE_BATCH,
    WORKER_BATCH,
    Requirement,
    differences,
    lacking,
    uses_of_host,
)
from spec_toggle.source import Source
from tests.contract.wheels import fetched

README = Path(__file__).resolve().parents[2] / "README.md"


@functools.cache
def contract_of(release: str) -> tuple[dict[str, list[str]], int]:
    """What the release lacks, and how many places it must have."""
    fetched(release)
    source = releases.source_of(release)
    places = requirements(source)
    return lacking(source, places), len(places)


def lacks_of(release: str) -> dict[str, list[str]]:
    return contract_of(release)[0]


@pytest.mark.parametrize("release", releases.SUPPORTED)
def test_a_supported_release_holds_the_contract(release: str) -> None:
    assert lacks_of(release) == {}


# Per release, a place known from its source to differ. Support for one starts by removing its row.
DIFFERS = {
    "0.5.9": ("sglang.srt.plugins.hook_registry.HookRegistry", "is missing"),
    "0.5.15": (
        "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation",
        "no parameter 'grammar_barrier'",
    ),
    "0.5.17": (
        "sglang.srt.model_executor.model_runner.ModelRunner",
        "no attribute 'shared_read_done_event'",
    ),
    "0.5.18": ("sglang.srt.arg_groups.overrides.declare_resolution", "is missing"),
    "0.5.20": (
        "sglang.srt.managers.overlap_utils.FutureMap.stash",
        "no code 'and payload.topk_p is not None'",
    ),
}


@pytest.mark.parametrize("release", DIFFERS)
def test_another_release_is_refused_for_what_differs_there(release: str) -> None:
    target, difference = DIFFERS[release]
    assert any(difference in found for found in lacks_of(release)[target])


def test_the_table_claims_no_run_for_a_release_that_only_holds_the_contract() -> None:
    _, places = contract_of("0.5.23")
    assert "| 9.9.9 | contract holds, not run |" in releases.support_table({"9.9.9": ({}, places)})


def test_every_release_is_either_fit_or_known_to_differ() -> None:
    assert set(releases.RELEASES) == {*releases.SUPPORTED, *DIFFERS}


def test_the_readme_has_the_generated_table() -> None:
    found = {release: contract_of(release) for release in releases.RELEASES}
    assert releases.support_table(found) in README.read_text(), (
        "put the output of `spec-toggle check --releases` into README.md"
    )


def test_the_check_imports_nothing_of_the_release() -> None:
    code = """
        import sys
        from spec_toggle.cli import main
        assert main(["check"]) == 0
        assert not [name for name in sys.modules if name.split(".")[0] == "sglang"]
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_wheel_that_cannot_be_fetched_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from spec_toggle.cli import main

    monkeypatch.setenv("SPEC_TOGGLE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert main(["check", "--release", "0.5.23"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "spec-toggle: error: the wheel of sglang 0.5.23 cannot be fetched: "
        "the package index cannot be reached"
    )
    assert not list((tmp_path / "wheels").glob("*.whl"))


# A release in miniature: how each form of definition is found.
HOST = {
    "__init__.py": "",
    "base.py": """
        class Base:
            def __init__(self, server_args):
                self.page_size = 1
            def inherited(self, batch): ...
        """,
    "worker.py": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from dataclasses import dataclass
        from torch import Tensor
        from .base import *
        if TYPE_CHECKING:
            from sglang.other import Result
        try:
            from sglang.base import Base as Parent
        except ImportError:
            Parent = object
        class Worker(Parent):
            field: int = 0
            @property
            def runner(self): return self._runner
            def forward(self, batch, *, on_publish=None):
                self.device, self.topk = batch, 1
                if batch.spec_info is not None:  # a comment is not code: batch.gone
                    return on_publish(batch)
            def loose(self, **kwargs): ...
        @dataclass
        class Result:
            tokens: list
            width: int = 1
        if True:
            LIMIT = 48
        """,
}


@pytest.fixture
def host(tmp_path: Path) -> Source:
    (tmp_path / "sglang").mkdir()
    for name, text in HOST.items():
        (tmp_path / "sglang" / name).write_text(textwrap.dedent(text))
    return Source(tmp_path)


@pytest.mark.parametrize(
    ("needs", "lacks"),
    [
        ({"target": "sglang.worker.Worker.forward", "parameters": ("batch", "on_publish")}, []),
        ({"target": "sglang.worker.Worker.loose", "parameters": ("anything",)}, []),
        ({"target": "sglang.worker.Worker.inherited", "parameters": ("batch",)}, []),
        ({"target": "sglang.worker.Result", "parameters": ("tokens", "width")}, []),
        ({"target": "sglang.base.Base", "parameters": ("server_args",)}, []),
        ({"target": "sglang.worker.LIMIT", "contains": ("48",)}, []),
        ({"target": "sglang.worker.Base"}, []),
        ({"target": "sglang.worker.Tensor"}, []),
        (
            {
                "target": "sglang.worker.Worker",
                "attributes": ("field", "runner", "device", "topk", "page_size", "no"),
            },
            ["no attribute 'no'"],
        ),
        (
            {
                "target": "sglang.worker.Worker.forward",
                "parameters": ("batch", "barrier"),
                "contains": ("batch.spec_info is not None", "batch.gone"),
            },
            ["no parameter 'barrier'", "no code 'batch.gone'"],
        ),
    ],
)
def test_what_a_source_holds(
    host: Source, needs: dict[str, tuple[str, ...]], lacks: list[str]
) -> None:
    requirement = Requirement(why="test", **needs)  # type: ignore[arg-type]
    assert differences(host, requirement) == [f"{requirement.target} has {lack}" for lack in lacks]


@pytest.mark.parametrize("target", ["sglang.worker.Worker.no", "sglang.no", "sglang.worker.no.no"])
def test_what_a_source_lacks(host: Source, target: str) -> None:
    assert differences(host, Requirement(target, "test")) == [f"{target} is missing"]


def test_our_own_source_says_what_it_uses_of_the_host() -> None:
    uses = uses_of_host(
        "m.py",
        "from sglang.a import Result, Mode as M\n"
        "from other import Thing\n"
        "def f():\n"
        "    try:\n"
        "        from sglang.b import go\n"
        "    except ImportError:\n"
        "        from sglang.c import start as go\n"
        "    return Result(tokens=go(x, width=1)), M.FULL, M.of(kind=2), Thing.no\n",
    )
    found = {use.target: (use.parameters, use.attributes, use.where) for use in uses}
    assert found == {
        "sglang.a.Result": (("tokens",), (), None),
        "sglang.a.Mode": ((), ("FULL", "of"), None),
        "sglang.a.Mode.of": (("kind",), (), None),
        "sglang.b.go": (("width",), (), SCHEDULE_BATCH),
        "sglang.c.start": (("width",), (), WORKER_BATCH),
    }
