"""The benchmark of the host's work, on the CPU engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.benchmark_runs import run_benchmark


def test_plain_steps_against_steps_without_speculation(tmp_path: Path) -> None:
    sizes = ("--batches", "1", "8", "--iterations", "80", "--model-dir", str(tmp_path / "models"))
    arms = run_benchmark(tmp_path, "host_time", "intel_amx", *sizes)
    assert set(arms) == {"none", "plain_off", "plain_deferred", "none_again"}
    for batch in ("1", "8"):
        both = [arms[arm][batch]["host_us"] for arm in ("none", "none_again")]
        for arm in ("plain_off", "plain_deferred"):
            cell = arms[arm][batch]
            assert cell["ratio"] == pytest.approx(2 * cell["host_us"] / sum(both))
            # It was 2 to 3 before slots were reserved ahead. A loaded machine scatters.
            assert 0.5 < cell["ratio"] < 5
