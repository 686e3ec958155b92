"""What the reference pair accepts on a GPU, after a resume too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.harness import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="NOT RUN: needs a CUDA GPU"),
]


def run(folder: Path, module: str, *arguments: str) -> dict[str, Any]:
    attention = os.environ.get("SPEC_TOGGLE_TEST_ATTENTION", "triton")
    command = [sys.executable, "-m", f"benchmarks.{module}", "--attention", attention]
    ran = subprocess.run(
        [*command, *arguments, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    (result,) = folder.glob("*.json")
    return dict(json.loads(result.read_text())["arms"])


def test_accept_length_of_the_reference_pair(tmp_path: Path) -> None:
    arm = run(tmp_path, "acceptance", "--batch", "64")["static"]
    assert arm["accept_len"] >= 2.2


def test_accept_length_after_a_resume(tmp_path: Path) -> None:
    parts = ("--pair", "reference", "--accept", "0", "--parts", "resume", "--syncs", "deferred")
    limits = ("--batches", "64", "--resume-batch", "64", "--plain-steps", "8", "64", "512")
    arms = run(tmp_path, "draft_sync", *parts, *limits)
    ratios = [found["ratio"] for found in arms["deferred"]["resume"].values()]
    assert min(ratios) >= 0.98
