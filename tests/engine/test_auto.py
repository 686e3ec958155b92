"""``auto`` on the real scheduler: it switches by costs, and its profiler leaves no trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spec_toggle.cost import CostTable
from spec_toggle.policy import Mode
from spec_toggle.profile_plan import Axes
from spec_toggle.profiling import Profiler
from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request

Encode = Callable[[str], list[int]]
AUTO = EngineConfig("chain", sync="off", extra=(("dynamic_spec_policy", "auto"),))


def injected_table() -> CostTable:
    """Rounds pay for one to three requests, and never for six."""
    counts = ((1,) * 3,)
    return CostTable((1, 3, 6), (0,), ((1.0, 1.0, 1.0),), ((1.1, 1.1, 9.0),), counts, counts)


@pytest.fixture(scope="module")
def requests(encode: Encode) -> list[Request]:
    prompts = [encode(text) for text in held_out_prompts(8, seed=21)]
    # Two alone, then six more at once; these end first.
    return [Request(p, 0, 120) for p in prompts[:2]] + [Request(p, 12, 24) for p in prompts[2:]]


def test_auto_switches_by_the_table_and_keeps_the_tokens(
    engines: Engines, requests: list[Request]
) -> None:
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    engine = engines.get(AUTO)
    controller = engine.toggle.controller
    controller.observations.costs.table = injected_table()
    controller.observations.accept.observe(200, 400)  # enough to trust
    modes: list[tuple[int, Mode]] = []
    decide = controller.policy.decide

    def spy(sample: object) -> object:
        decision = decide(sample)
        modes.append((sample.batch_size, decision.mode))  # type: ignore[attr-defined]
        return decision

    controller.policy.decide = spy
    outcomes = engine.run(requests)
    controller.policy.decide = decide
    assert [outcome.tokens for outcome in outcomes] == expected
    assert all(mode is Mode.PLAIN for size, mode in modes if size == 8)
    first_plain = next(i for i, (_, mode) in enumerate(modes) if mode is Mode.PLAIN)
    assert {mode for _, mode in modes[:first_plain]} == {Mode.SPEC}
    assert modes[-5][1] is Mode.SPEC, "speculation returns when two requests are left"
    assert controller.observations.accept.weight > 0
    assert 1.2 < controller.observations.accept.value < 4
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize(
    "config",
    [
        AUTO,
        EngineConfig("chain", sync="eager", overlap=False, page_size=16, extra=AUTO.extra),
        EngineConfig("tree", sync="off", extra=AUTO.extra),
    ],
    ids=["chain-off", "chain-eager-no-overlap-paged", "tree-off"],
)
def test_the_profiler_times_both_modes_and_leaves_no_trace(
    config: EngineConfig, engines: Engines, requests: list[Request]
) -> None:
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    engine = engines.get(config)
    engine.flush()  # as at start: the profiler writes to any slot
    free = engine.free_tokens()
    totals = engine.toggle.controller.totals
    before = (totals.plain_steps, totals.rounds)
    profiler = Profiler(engine.scheduler, engine.toggle, lambda values: values)
    table = profiler.measure(Axes((1, 6), (64, 1500)), budget_s=300)
    assert table.plain_count == table.round_count == ((8, 8), (8, 0))
    assert all(ms > 0 for grid in (table.plain_ms, table.round_ms) for row in grid for ms in row)
    assert table.break_even(1, 64) > 1
    assert not engine.scheduler.req_to_token_pool.req_to_token.any()
    assert (totals.plain_steps, totals.rounds) == before
    assert engine.free_tokens() == free
    outcomes = engine.run(requests, lambda step: step % 7 < 3)
    assert [outcome.tokens for outcome in outcomes] == expected


def test_without_a_gpu_costs_are_learnt_in_service(
    engines: Engines, requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an assumed table: rounds give the unit, a probe times the plain step."""
    config = EngineConfig("chain", sync="off", extra=(*AUTO.extra, ("dynamic_spec_dwell", 4)))
    engine = engines.get(config)
    costs = engine.toggle.controller.observations.costs
    assert not any(map(any, (*costs.table.plain_count, *costs.table.round_count)))
    costs._interval = 10
    # What an iteration takes here depends on who else uses the machine.
    takes_s, now = {Mode.PLAIN: 0.002, Mode.SPEC: 0.005}, [0.0]
    result = costs.result

    def timed(mode: Mode, batch_size: int, forward: int) -> None:
        now[0] += takes_s[mode]
        result(mode, batch_size, forward)

    monkeypatch.setattr(costs, "result", timed)
    monkeypatch.setattr(costs._timer, "_clock", lambda: now[0])
    engine.run([Request(request.prompt, 0, 460) for request in requests[:2]])
    totals = engine.toggle.controller.totals
    assert totals.plain_steps >= 8, "the probe"
    for mode in Mode:  # the contexts of the table lie around that of the requests
        assert costs.table.is_measured(mode, 2, 0)
        assert costs.table.ms(mode, 2, 0) == pytest.approx(1000 * takes_s[mode], rel=0.02)
    assert costs.table.break_even(2, 0) == pytest.approx(2.5, rel=0.03)
