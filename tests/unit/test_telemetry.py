"""Reports: switch lines under flapping, collapsed acceptance, and the series behind them."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from spec_toggle.collapse import AcceptanceWatch
from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.load import LoadSample
from spec_toggle.metrics import ToggleMetrics
from spec_toggle.policy import Mode
from spec_toggle.steering import Force, Order
from spec_toggle.switch_log import SwitchLog
from spec_toggle.telemetry import Telemetry

LABELS = {"model_name": "tiny"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A controller whose clock and series a test can reach."""

    def __init__(self, threshold: int = 4) -> None:
        self.clock, self.registry = Clock(), CollectorRegistry()
        self.telemetry = Telemetry(ToggleMetrics(LABELS, self.registry), self.clock)
        config = DynamicSpecConfig(threshold=threshold, hysteresis=0, dwell=1)
        self.controller = Controller.from_config(config, self.telemetry)

    def run(self, *sizes: int, step_s: float = 1.0) -> None:
        for size in sizes:
            self.clock.now += step_s
            self.controller.begin_iteration(LoadSample(size))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"spec_toggle_{name}", {**LABELS, **labels})


def test_series_follow_decisions() -> None:
    bench = Bench()
    bench.run(1, 5, 5, 1)
    bench.controller.steer(Order({"threshold": 2}, Force(Mode.PLAIN, 1.0)))
    bench.run(1)
    assert bench.value("iterations_total", mode="spec") == 2
    assert bench.value("iterations_total", mode="plain") == 3
    assert bench.value("switches_total", mode="plain", reason="load") == 1
    assert bench.value("switches_total", mode="plain", reason="forced") == 1
    assert bench.value("switches_total", mode="spec", reason="load") == 1
    assert bench.value("mode_seconds_total", mode="spec") == 3
    assert bench.value("mode_seconds_total", mode="plain") == 2
    assert bench.value("boundary_requests") == 2
    assert bench.value("forced", mode="plain") == 1
    assert bench.value("speculating") == 0


def test_rounds_are_counted_by_age_of_speculation() -> None:
    bench = Bench()
    bench.controller.count_round(bench.controller.rounds_since_resume, 2, 5)
    bench.run(5, 1)
    assert bench.controller.rounds_since_resume == 1
    bench.controller.count_round(1, 1, 2)
    bench.controller.count_round(33, 1, 4)
    assert bench.value("verified_tokens_total", age="first_32") == 2
    assert bench.value("verifications_total", age="first_32") == 1
    assert bench.value("verified_tokens_total", age="later") == 9
    assert bench.value("verifications_total", age="later") == 3


def test_series_without_a_source_have_no_sample() -> None:
    bench = Bench()
    unfed = ["probe_rounds_total", "estimated_gain_ratio"]
    assert [bench.value(name) for name in unfed] == [None] * 2
    metrics = bench.telemetry.metrics
    assert metrics is not None
    metrics.probe_round()
    metrics.estimated_gain(1.25)
    metrics.draft_sync_backlog(7)
    metrics.draft_sync_flush(0.003)
    assert [bench.value(name) for name in unfed] == [1, 1.25]
    assert bench.value("draft_sync_pending_tokens") == 7
    assert bench.value("draft_sync_flush_seconds_bucket", le="0.005") == 1


def test_collapsed_acceptance_is_counted_each_time_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    with caplog.at_level(logging.WARNING, "spec_toggle"):
        for _ in range(450):
            bench.controller.count_round(None, 3, 3)
    (warning,) = caplog.messages
    assert "accept length 1.00 for 200 rounds in a row" in warning
    assert bench.value("accept_collapses_total") == 2


def test_one_accepted_token_or_no_request_is_no_collapse() -> None:
    watch = AcceptanceWatch(limit=3)
    assert [watch.observe(2, n) for n in (2, 2, 3, 2, 2)] == [False] * 5
    assert not watch.observe(0, 0)
    assert watch.observe(2, 2)


def test_flapping_writes_a_few_lines_and_then_a_total(caplog: pytest.LogCaptureFixture) -> None:
    log = SwitchLog(lines=3, window_s=60)
    with caplog.at_level(logging.INFO, "spec_toggle"):
        for second in range(10):
            log.write(f"switch {second}", float(second))
        assert caplog.messages == [f"Dynamic speculation: switch {n}" for n in range(3)]
        log.tick(59.9)
        assert len(caplog.messages) == 3
        log.tick(60.0)
        assert caplog.messages[3:] == ["Dynamic speculation: 7 more switches in the last 60 s"]
        log.tick(200.0)
        log.write("calm again", 300.0)
        assert caplog.messages[4:] == ["Dynamic speculation: calm again"]
