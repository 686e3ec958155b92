"""Greedy tokens under any sequence of switches equal those without speculation, exactly."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request

pytestmark = pytest.mark.usefixtures("wrong_forecasts")
# A small budget, so that deferred sync writes in the middle of things.
FEW_TOKENS = (("dynamic_spec_sync_tokens", 24),)
CONFIGS = [
    EngineConfig("chain", overlap=True, page_size=1, sync="deferred", extra=FEW_TOKENS),
    EngineConfig("chain", overlap=True, page_size=16, sync="off"),
    EngineConfig("chain", overlap=False, page_size=1, sync="deferred", extra=FEW_TOKENS),
    EngineConfig("chain", overlap=False, page_size=16, sync="eager"),
    EngineConfig("tree", overlap=True, page_size=1, sync="deferred", extra=FEW_TOKENS),
    EngineConfig("tree", overlap=True, page_size=1, sync="off"),
    EngineConfig("tree", overlap=False, page_size=1, sync="eager"),
]
EVERY_POSITION = [CONFIGS[0], CONFIGS[2], CONFIGS[4]]
SEQUENCES = 30  # per configuration: 210 in all

Encode = Callable[[str], list[int]]


def name(config: EngineConfig) -> str:
    schedule = "overlap" if config.overlap else "sync"
    return f"{config.speculation}-{schedule}-page{config.page_size}-{config.sync}"


def tokens(outcomes: list) -> list[list[int]]:
    return [outcome.tokens for outcome in outcomes]


@pytest.fixture(scope="module")
def prompts(encode: Encode) -> list[list[int]]:
    return [encode(text) for text in held_out_prompts(40, seed=11)]


@pytest.mark.parametrize("config", EVERY_POSITION, ids=name)
def test_every_switch_position_in_thirty_tokens(
    config: EngineConfig, engines: Engines, prompts: list[list[int]]
) -> None:
    request = Request(prompts[0], max_new_tokens=30)
    expected = tokens(engines.reference([request]))
    engine = engines.get(config)
    for position in range(31):
        to_plain = engine.run([request], lambda step, at=position: step >= at)
        assert tokens(to_plain) == expected, f"SPEC -> PLAIN at iteration {position}"
        to_spec = engine.run([request], lambda step, at=position: step < at)
        assert tokens(to_spec) == expected, f"PLAIN -> SPEC at iteration {position}"
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_random_switch_sequences_while_requests_join_and_leave(
    config: EngineConfig, engines: Engines, prompts: list[list[int]]
) -> None:
    rng = random.Random(name(config))
    pool = [Request(prompt, max_new_tokens=8 + index % 17) for index, prompt in enumerate(prompts)]
    expected = tokens(engines.reference(pool))
    engine = engines.get(config)
    for sequence in range(SEQUENCES):
        chosen = rng.sample(range(len(pool)), rng.randint(2, 6))
        requests = [
            Request(pool[i].prompt, rng.randrange(25), pool[i].max_new_tokens) for i in chosen
        ]
        share = rng.choice((0.1, 0.3, 0.5, 0.7, 0.9))
        script = [rng.random() < share for _ in range(2000)]
        outcomes = engine.run(requests, lambda step, modes=script: modes[step])
        assert tokens(outcomes) == [expected[i] for i in chosen], f"sequence {sequence}"
    totals = engine.toggle.controller.totals
    assert min(totals.plain_steps, totals.rounds) > SEQUENCES
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("speculation", ["chain", "tree"])
def test_acceptance_after_switches_equals_that_of_a_run_that_never_switched(
    speculation: str, engines: Engines, encode: Encode
) -> None:
    requests = [Request(encode(t), max_new_tokens=96) for t in held_out_prompts(16, seed=5)]
    engine = engines.get(EngineConfig(speculation, sync="deferred"))

    def accept_length(phase: int | None) -> tuple[int, int]:
        script = (lambda _: False) if phase is None else (lambda step: (step + phase) % 9 < 4)
        reqs = [outcome.req for outcome in engine.run(requests, script)]
        return sum(r.spec_num_correct_drafts for r in reqs), sum(r.spec_verify_ct for r in reqs)

    drafts, rounds = accept_length(None)
    never = 1 + drafts / rounds
    switched_runs = [accept_length(phase) for phase in (0, 2, 5, 7)]
    switched = 1 + sum(d for d, _ in switched_runs) / sum(r for _, r in switched_runs)
    assert never > 1.8
    assert switched == pytest.approx(never, rel=0.02)
