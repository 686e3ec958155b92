"""The burst benchmark on the CPU engine: the same arrivals for every arm, one start per engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.benchmark_runs import run_benchmark

pytestmark = pytest.mark.slow


def test_arms_serve_the_same_load_and_the_toggle_switches(tmp_path: Path) -> None:
    load = ("--low", "1", "--high", "24", "--period", "1", "--seconds", "3", "--threshold", "4")
    sizes = ("--input-len", "24", "--output-len", "16", "--largest", "16")
    arms = run_benchmark(
        tmp_path,
        "burst",
        "intel_amx",
        *("--arms", "none,static,toggle_deferred,auto", "--model", "dummy-tiny"),
        *load,
        *sizes,
        *("--model-dir", str(tmp_path / "models")),
    )
    assert list(arms) == ["none", "static", "toggle_deferred", "auto"]
    served = [sum(arm["burst"]["timeline"]["output_tok_s"]) for arm in arms.values()]
    assert served == pytest.approx([served[0]] * 4, rel=0.01)
    assert arms["toggle_deferred"]["burst"]["switches"] >= 2
    assert arms["static"]["burst"]["switches"] == 0
