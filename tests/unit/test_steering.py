"""Orders: what an operator may ask, and that every rank ends up with the same decisions."""

from typing import Any

import pytest

from spec_toggle.config import ConfigError, DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.load import LoadSample
from spec_toggle.policy import Mode
from spec_toggle.steering import Force, Order

NOW = 1000.0


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ({"threshold": 24}, Order({"threshold": 24})),
        ({"force": "plain", "seconds": 60}, Order(force=Force(Mode.PLAIN, 1060.0))),
        ({"force": "spec", "seconds": 0.5}, Order(force=Force(Mode.SPEC, 1000.5))),
        ({"force": "none"}, Order(release=0)),
        (
            {"dwell": 8, "force": "plain", "seconds": 1},
            Order({"dwell": 8}, Force(Mode.PLAIN, 1001.0)),
        ),
    ],
)
def test_a_body_is_an_order_and_survives_the_wire(body: dict[str, Any], order: Order) -> None:
    assert Order.from_body(body, NOW) == order
    assert Order.from_wire(order.to_wire()) == order
    assert all(type(value) in (int, float) for value in order.to_wire().values())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "nothing to change"),
        ({}, "nothing to change"),
        ([1], "nothing to change"),
        ({"treshold": 3}, "unknown setting 'treshold'"),
        ({"threshold": "24"}, "threshold '24' cannot be set"),
        ({"threshold": True}, "Use a number"),
        ({"hysteresis": None}, "Use a number"),
        ({"draft_sync": "lazy"}, "draft_sync 'lazy' is unknown. Use one of: deferred, eager, off"),
        ({"sync_tokens": 9}, "sync_tokens cannot change on a running server: its buffers"),
        ({"force": "fast", "seconds": 3}, "force 'fast' is unknown"),
        ({"force": ["spec"], "seconds": 3}, "is unknown"),
        ({"force": "spec"}, "got no seconds"),
        ({"force": "spec", "seconds": 0}, "seconds 0"),
        ({"force": "spec", "seconds": float("nan")}, "seconds nan"),
        ({"force": "spec", "seconds": 1e9}, "at most 86400"),
        ({"force": "none", "seconds": 3}, "takes no seconds"),
        ({"seconds": 3}, "no effect without force"),
    ],
)
def test_a_wrong_body_is_refused_with_its_reason(body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + message):
        Order.from_body(body, NOW)


def controller() -> Controller:
    return Controller.from_config(DynamicSpecConfig(threshold=4, hysteresis=0, dwell=1))


def modes(subject: Controller, sizes: list[int]) -> list[Mode]:
    return [subject.begin_iteration(LoadSample(size)) for size in sizes]


def test_settings_act_from_the_next_iteration_on_and_keep_the_mode() -> None:
    subject = controller()
    assert modes(subject, [5, 3]) == [Mode.PLAIN, Mode.SPEC]
    subject.steer(Order({"threshold": 2}))
    assert modes(subject, [3, 3, 2]) == [Mode.PLAIN, Mode.PLAIN, Mode.SPEC]
    assert subject.policy.boundary == 2


def test_settings_that_do_not_go_together_change_nothing() -> None:
    subject = controller()
    with pytest.raises(ConfigError, match="hysteresis 9 is larger than threshold 8"):
        subject.steer(Order({"threshold": 8, "hysteresis": 9}, Force(Mode.PLAIN, 1.0)))
    assert subject.steering.config.threshold == 4 and subject.steering.force is None


def test_force_holds_against_load_and_idleness_until_its_own_release() -> None:
    subject = controller()
    subject.steer(Order(force=Force(Mode.PLAIN, 50.0)))
    subject.idle()
    assert subject.mode is Mode.PLAIN
    subject.steer(Order(force=Force(Mode.SPEC, 60.0)))
    assert modes(subject, [1, 9]) == [Mode.SPEC, Mode.SPEC]
    subject.steer(Order(release=50.0))  # of the force that another has replaced
    assert modes(subject, [9]) == [Mode.SPEC]
    subject.steer(Order(release=60.0))
    assert modes(subject, [9]) == [Mode.PLAIN]


def test_ranks_that_get_the_same_orders_decide_the_same() -> None:
    first, second = controller(), controller()
    orders = {2: Order(force=Force(Mode.PLAIN, 7.0)), 5: Order({"threshold": 1}, release=7.0)}
    for step, size in enumerate([1, 2, 2, 6, 2, 2, 1, 1]):
        for rank in (first, second):
            if step in orders:
                rank.steer(Order.from_wire(orders[step].to_wire()))
            rank.begin_iteration(LoadSample(size))
        assert first.mode is second.mode
    assert first.totals == second.totals
