"""The simulator, and the bound on the regret of ``auto`` that it shows."""

import json
from pathlib import Path

import pytest

from benchmarks.simulate import MEASURED, distorted, main, measured_table, simulate
from benchmarks.traces import Trace, synthetic
from spec_toggle.policy import Mode


def test_costs_are_read_from_the_measured_arms() -> None:
    table = measured_table(MEASURED)
    static = json.loads(MEASURED.read_text())["arms"]["static"]["levels"]["16"]
    expected = static["tpot_ms_p50"] * static["accept_len"]
    assert table.ms(Mode.SPEC, 16, 0) == pytest.approx(expected)


# What a policy without an oracle must lose: until it has seen the acceptance change, or probed.
@pytest.mark.parametrize(
    ("index", "seconds", "bound"),
    [(0, 40, 0.01), (1, 40, 0.01), (2, 40, 0.02), (3, 40, 0.015), (4, 120, 0.08)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_regret_of_auto_is_bounded(index: int, seconds: float, bound: float, seed: int) -> None:
    truth = measured_table(MEASURED)
    trace = synthetic(seconds, seed)[index]
    believed = distorted(truth, 0.1, seed)
    auto = simulate("auto", trace, truth, believed, seed)
    assert auto.regret < bound, trace.name
    fixed = [simulate(name, trace, truth, believed, seed).regret for name in ("spec", "plain")]
    assert max(fixed) > 0.08


def test_every_policy_serves_every_token() -> None:
    truth = measured_table(MEASURED)
    trace = synthetic(5, 0)[0]
    wanted = sum(arrival.output_len for arrival in trace.arrivals)
    for name in ("plain", "threshold-8", "auto"):
        outcome = simulate(name, trace, truth, truth, 0)
        assert wanted <= outcome.tokens <= wanted + 3 * len(trace.arrivals)
    assert simulate("auto", trace, truth, truth, 0) == simulate("auto", trace, truth, truth, 0)


def test_recorded_traces_and_the_files(tmp_path: Path) -> None:
    recorded = tmp_path / "night.json"
    recorded.write_text('{"arrivals": [[900, 10, 40], [0, 20, 30]], "accept": [[0, 2.0]]}')
    assert [arrival.at_ms for arrival in Trace.read(recorded).arrivals] == [0, 900]
    pytest.importorskip("matplotlib")
    other = tmp_path / "day.json"
    other.write_text(recorded.read_text())
    out = tmp_path / "result"
    assert main(["--trace", str(recorded), str(other), "--out", str(out)]) == 0
    document = json.loads(out.with_suffix(".json").read_text())
    assert set(document["arms"]) == {"night", "day"}
    assert out.with_suffix(".png").stat().st_size > 0
