"""Requests that come and go in the stepped scheduler, on the CPU engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.host_phases import PHASES
from tests.engine.benchmark_runs import run_benchmark

pytestmark = pytest.mark.slow

OUTPUT = 16


@pytest.mark.parametrize("waves", [(), ("--waves",)], ids=["apart", "waves"])
def test_prefills_stand_between_the_iterations_of_every_arm(
    waves: tuple[str, ...], tmp_path: Path
) -> None:
    lengths = ("--input-len", "16", "--output-len", str(OUTPUT))
    times = ("--settle-s", "0.2", "--window-s", "1")
    arms = run_benchmark(
        tmp_path,
        "turnover",
        "intel_amx",
        *("--model", "dummy-tiny", "--model-dir", str(tmp_path / "models")),
        *("--arms", "none,plain_deferred,none_again", "--levels", "4", *lengths, *times, *waves),
    )
    both = [arms[arm]["4"]["output_tok_s"] for arm in ("none", "none_again")]
    for levels in arms.values():
        cell = levels["4"]
        # One token of a request is its prefill's, the others one decode iteration's each.
        tokens_of_decodes = cell["output_tok_s"] * (OUTPUT - 1) / OUTPUT
        assert cell["decodes"] * 4 == pytest.approx(tokens_of_decodes, rel=0.3)
        assert 0 < cell["prefills"] < cell["decodes"]
        if waves:  # one prefill for all, or two where the last results come late
            assert cell["prefills"] < cell["decodes"] / (OUTPUT - 1) * 2.2
        assert cell["decode_ms_p50"] > 0
        host = cell["host_ms"]
        assert sum(found["count"] for found in host.values()) == pytest.approx(
            cell["decodes"] + cell["prefills"], abs=2
        )
        assert host["first_decode"]["count"] == pytest.approx(cell["prefills"], abs=1)
        assert all(host["decode"][phase] > 0 for phase in PHASES)
        assert cell["ratio"] == pytest.approx(2 * cell["output_tok_s"] / sum(both))
        assert "busy_share" not in cell, "the CPU has no profile of a device"
