"""Traces of load, and what is made of the times of their tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import burst_plot
from benchmarks.trace import Served, arrivals, burst, ramp, steady, summarise, timeline

SERVED = [
    Served(0.0, [(0.5, 1), (1.0, 6), (1.5, 11)]),  # 100 ms per token
    Served(1.0, [(1.5, 1), (3.5, 11)]),  # 200 ms per token
]


def test_arrivals_are_seeded_ordered_and_follow_the_rate() -> None:
    times = arrivals(burst(2, 40, 5), 20, seed=3)
    assert times == sorted(times) == arrivals(burst(2, 40, 5), 20, seed=3)
    assert times != arrivals(burst(2, 40, 5), 20, seed=4)
    low = sum(int(t / 5) % 2 == 0 for t in times)
    assert 8 <= low <= 45 and 330 <= len(times) - low <= 470


def test_rates() -> None:
    assert [ramp(2, 10, 8)(t) for t in (0, 2, 4, 6, 8)] == [2, 6, 10, 6, 2]
    assert steady(7)(3.3) == 7


def test_summary() -> None:
    found = summarise(SERVED, deadline_ms=150)
    assert found["span_s"] == 3.5
    assert found["output_tok_s"] == pytest.approx(22 / 3.5)
    assert found["goodput_req_s"] == pytest.approx(1 / 3.5)
    assert (found["tpot_ms_p50"], found["tpot_ms_p99"]) == (200, 200)
    assert found["ttft_ms_p50"] == 500


def test_timeline_keeps_every_token() -> None:
    line = timeline(SERVED, bin_s=0.5)
    assert sum(line["output_tok_s"]) * 0.5 == 22
    assert sum(line["requests"]) * 0.5 == pytest.approx(1.5 + 2.5)


def test_the_plot_is_made_and_other_files_are_refused(tmp_path: Path) -> None:
    arm = {"output_tok_s": 6.3, "timeline": timeline(SERVED)}
    result = tmp_path / "burst.json"
    document = {"benchmark": "burst", "provenance": {"threshold": 2}, "arms": {"none": {"a": arm}}}
    result.write_text(json.dumps(document))
    assert burst_plot.main([str(result)]) == 0
    assert result.with_suffix(".png").stat().st_size > 1000
    result.write_text(json.dumps({"benchmark": "envelope"}))
    assert burst_plot.main([str(result)]) == burst_plot.main([str(tmp_path / "none")]) == 2
