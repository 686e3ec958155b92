"""The simulator, and the bound on the regret of ``auto`` that it shows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulate import MEASURED, Simulation, distorted, main, make_controller, simulate
from benchmarks.traces import Arrival, Trace, synthetic
from spec_toggle.profile_store import read_profile

TRUTH = read_profile(MEASURED).table
GRIDS = ("plain_ms", "round_ms", "plain_count", "round_count")


def test_what_a_server_believes_is_wrong_by_a_share() -> None:
    believed = distorted(TRUTH, 0.1, seed=3)
    for row, wrong_row in zip(TRUTH.round_ms, believed.round_ms, strict=True):
        assert row != wrong_row and wrong_row == pytest.approx(row, rel=0.1)


# What a policy without an oracle must lose: until it has seen the acceptance change, or probed.
@pytest.mark.parametrize(
    ("index", "seconds", "bound"),
    [(0, 40, 0.01), (1, 40, 0.01), (2, 40, 0.01), (3, 40, 0.015), (4, 120, 0.03)],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_regret_of_auto_is_bounded(index: int, seconds: float, bound: float, seed: int) -> None:
    trace = synthetic(seconds, seed)[index]
    believed = distorted(TRUTH, 0.1, seed)
    auto = simulate("auto", trace, TRUTH, believed, seed)
    assert auto.regret < bound, trace.name
    fixed = [simulate(name, trace, TRUTH, believed, seed).regret for name in ("spec", "plain")]
    assert max(fixed) > 0.08


@pytest.mark.parametrize("size", [1, 4, 16, 32])
def test_auto_follows_acceptance_that_drifts_within_five_seconds(size: int) -> None:
    rows = {name: getattr(TRUTH, name)[:1] for name in GRIDS}
    truth = replace(TRUTH, contexts=(256,), **rows)  # or the growing context would decide, too
    changes = ((0.0, 1.1), (20_000.0, 3.3), (40_000.0, 1.1))
    trace = Trace("drift", (Arrival(0, 256, 16_000),) * size, changes)
    simulation = Simulation(trace, truth, seed=1)
    controller = make_controller("auto", truth, lambda: simulation.now_ms / 1000)
    simulation.run(controller)
    points = simulation.outcome.points

    def lost_between(start_s: float, end_s: float) -> float:
        """ms, of what the time in between had to give."""
        inside = [lost for ms, lost in points if 1000 * start_s <= ms < 1000 * end_s]
        return inside[-1] - inside[0]

    for change_s in (20, 40):
        before, after = (
            lost_between(change_s, change_s + 5),
            lost_between(change_s + 5, change_s + 20),
        )
        assert before > 0, "it cannot know at once"
        assert after < 0.02 * 1000 * 15


def test_every_policy_serves_every_token() -> None:
    trace = synthetic(5, 0)[0]
    wanted = sum(arrival.output_len for arrival in trace.arrivals)
    for name in ("plain", "threshold-8", "auto"):
        outcome = simulate(name, trace, TRUTH, TRUTH, 0)
        assert wanted <= outcome.tokens <= wanted + 3 * len(trace.arrivals)
    assert simulate("auto", trace, TRUTH, TRUTH, 0) == simulate("auto", trace, TRUTH, TRUTH, 0)


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
