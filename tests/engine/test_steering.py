"""Orders reach the real scheduler as SGLang's own control requests, in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.policy import Mode
from spec_toggle.reference.tiny_text import held_out_prompts
from spec_toggle.state import KEY
from spec_toggle.steering import Force, Order
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Outcome, Request, StepEngine

CHAIN = EngineConfig("chain", sync="eager")
Orders = dict[int, Order]


@pytest.fixture(scope="module")
def requests(encode: Callable[[str], list[int]]) -> list[Request]:
    prompts = [encode(text) for text in held_out_prompts(4, seed=23)]
    return [Request(prompt, max_new_tokens=60) for prompt in prompts]


@pytest.fixture
def engine(engines: Engines, requests: list[Request]) -> StepEngine:
    engines.reference(requests)  # before the engine under test: there is one at a time
    engine = engines.get(CHAIN)
    toggle = engine.toggle
    toggle.controller = Controller.from_config(DynamicSpecConfig(), toggle.controller.telemetry)
    return engine


def send(engine: StepEngine, wire: dict[str, Any]) -> bool:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    request = SetInternalStateReq(server_args=wire)
    return bool(engine.scheduler._request_dispatcher(request).updated)


def state(engine: StepEngine) -> dict[str, Any]:
    from sglang.srt.managers.io_struct import GetInternalStateReq

    answer = engine.scheduler._request_dispatcher(GetInternalStateReq())
    return dict(answer.internal_state[KEY])


def run(
    engine: StepEngine, requests: list[Request], orders: Orders
) -> tuple[list[Mode], list[Outcome]]:
    """The mode that each loop iteration begins in, and the outcome of each request."""
    modes: list[Mode] = []

    def on_step(iteration: int) -> None:
        modes.append(engine.toggle.controller.mode)
        if iteration in orders:
            assert send(engine, orders[iteration].to_wire())

    engine.on_step = on_step
    try:
        return modes, engine.run(requests)
    finally:
        engine.on_step = None


def test_forced_modes_hold_until_released_with_equal_tokens(
    engine: StepEngine, engines: Engines, requests: list[Request]
) -> None:
    plain, spec = Force(Mode.PLAIN, until=100.5), Force(Mode.SPEC, until=200.25)
    orders = {
        6: Order(force=plain),
        16: Order({"threshold": 2, "hysteresis": 0}),  # the policy would now say PLAIN as well
        20: Order(force=spec),
        22: Order(release=plain.until),  # late: another force is in its place
        26: Order(release=spec.until),
    }
    modes, outcomes = run(engine, requests, orders)
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    assert [outcome.tokens for outcome in outcomes] == expected
    # An order takes effect in the iteration that it arrives in, seen at the start of the next.
    assert set(modes[3:7]) == {Mode.SPEC}
    assert set(modes[7:21]) == {Mode.PLAIN}
    assert set(modes[21:27]) == {Mode.SPEC}
    assert modes[27] is Mode.PLAIN
    assert engine.free_tokens() == engine.initial_free


def test_state_says_what_is_forced_and_counts_only_rounds_as_verified(
    engine: StepEngine, requests: list[Request]
) -> None:
    run(engine, requests, {6: Order(force=Force(Mode.PLAIN, 9.5)), 16: Order({"dwell": 5})})
    seen = state(engine)
    assert (seen["mode"], seen["reason"]) == ("plain", "forced by an operator")
    assert seen["force"] == {"mode": "plain", "until": 9.5}
    assert seen["config"]["dwell"] == 5 and seen["boundary"] == 32
    totals = seen["totals"]
    assert totals["verifications"] <= 4 * totals["rounds"]
    assert 1 < totals["verified_tokens"] / totals["verifications"] <= 4
    assert send(engine, Order(release=0).to_wire())
    assert state(engine)["force"] is None


def test_each_request_knows_its_plain_tokens(engine: StepEngine, requests: list[Request]) -> None:
    _, outcomes = run(
        engine, requests, {8: Order(force=Force(Mode.PLAIN, 1)), 16: Order(release=1)}
    )
    plain = [outcome.req.spec_num_block_accept_tokens for outcome in outcomes]
    assert sum(plain) == engine.toggle.controller.totals.plain_tokens
    for outcome, count in zip(outcomes, plain, strict=True):
        assert 0 < count < len(outcome.tokens)


@pytest.mark.parametrize(
    "wire",
    [
        {"dynamic_spec_threshold": -1},
        {"dynamic_spec_threshold": 4, "dynamic_spec_hysteresis": 5},
        {"dynamic_spec_no_such": 1},
        {"dynamic_spec_force": 3, "dynamic_spec_until": 1.0},
        {"dynamic_spec_threshold": 4, "pp_max_micro_batch_size": 8},
    ],
)
def test_a_refused_order_changes_nothing(engine: StepEngine, wire: dict[str, Any]) -> None:
    before = state(engine)
    assert not send(engine, wire)
    assert state(engine) == before


def test_upstreams_own_settings_still_pass(engine: StepEngine) -> None:
    assert send(engine, {"pp_max_micro_batch_size": 8})
    assert not send(engine, {"no_such_setting": 8})


def test_policy_and_draft_sync_change_while_requests_run(
    engines: Engines, requests: list[Request]
) -> None:
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    engine = engines.get(EngineConfig("chain", sync="deferred"))
    orders = {
        5: Order({"policy": "auto", "margin": 0.2}),
        9: Order({"draft_sync": "eager"}),
        14: Order({"policy": "threshold", "threshold": 0, "hysteresis": 0}),
        20: Order({"draft_sync": "off"}),
        24: Order({"threshold": 32, "dwell": 1}),
        28: Order({"draft_sync": "deferred"}),
    }
    modes, outcomes = run(engine, requests, orders)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert Mode.PLAIN in modes[15:24] and Mode.SPEC in modes[26:]
    config = state(engine)["config"]
    assert (config["policy"], config["draft_sync"]) == ("threshold", "deferred")


def test_a_server_launched_with_eager_refuses_other_syncs(engine: StepEngine) -> None:
    engine.toggle.controller.steering.draft_syncs = ("eager",)
    assert state(engine)["draft_syncs"] == ["eager"]
    assert not send(engine, Order({"draft_sync": "off"}).to_wire())
    assert send(engine, Order({"draft_sync": "eager"}).to_wire())
