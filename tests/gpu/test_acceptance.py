"""What the reference pair accepts on a GPU, after a resume too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.benchmark_runs import run_benchmark
from tests.engine.harness import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="NOT RUN: needs a CUDA GPU"),
]
ATTENTION = os.environ.get("SPEC_TOGGLE_TEST_ATTENTION", "triton")


def test_accept_length_of_the_reference_pair(tmp_path: Path) -> None:
    arm = run_benchmark(tmp_path, "acceptance", ATTENTION, "--batch", "64")["static"]
    assert arm["accept_len"] >= 2.2


def test_accept_length_after_a_resume(tmp_path: Path) -> None:
    parts = ("--pair", "reference", "--accept", "0", "--parts", "resume", "--syncs", "deferred")
    limits = ("--batches", "64", "--resume-batch", "64", "--plain-steps", "8", "64", "512")
    arms = run_benchmark(tmp_path, "draft_sync", ATTENTION, *parts, *limits)
    ratios = [found["ratio"] for found in arms["deferred"]["resume"].values()]
    assert min(ratios) >= 0.98
