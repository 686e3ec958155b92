"""Faults that speculation in serving engines has had in public, each forced at switches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Outcome, Request, Script
from tests.engine.host import draft_of, draft_runner_of, has_worker_batch, reporter_of

Encode = Callable[[str], list[int]]

# A small budget, so that deferred sync writes in the middle of things.
FEW_TOKENS = (("dynamic_spec_sync_tokens", 24),)
CHAIN = EngineConfig("chain", sync="deferred", extra=FEW_TOKENS)
CHAIN_EAGER = EngineConfig("chain", sync="eager")
CHAIN_OFF = EngineConfig("chain", sync="off")
CHAIN_NORMAL = EngineConfig("chain", overlap=False, sync="deferred", extra=FEW_TOKENS)
TREE = EngineConfig("tree", sync="off")
TREE_DEFERRED = EngineConfig("tree", sync="deferred", extra=FEW_TOKENS)


def alternate(period: int = 3) -> Script:
    return lambda step: step // period % 2 == 1


def plain(_: int) -> bool:
    return True


def spec(_: int) -> bool:
    return False


def tokens(outcomes: list[Outcome]) -> list[list[int]]:
    return [outcome.tokens for outcome in outcomes]


@pytest.fixture(scope="module")
def prompts(encode: Encode) -> list[list[int]]:
    return [encode(text) for text in held_out_prompts(24, seed=23)]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 15, 16])
def test_trap_1_every_batch_size_first_thing_after_start(
    size: int, engines: Engines, prompts: list[list[int]]
) -> None:
    """ON -> OFF -> ON as the first requests of an engine, at and around the limits."""
    requests = [Request(prompt, max_new_tokens=14) for prompt in prompts[:size]]
    expected = tokens(engines.reference(requests))
    engine = engines.get(CHAIN)
    assert tokens(engine.run(requests, alternate(2))) == expected


@pytest.mark.parametrize("first", [plain, spec])
def test_trap_2_start_in_one_mode_then_the_other(
    first: Script, engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [Request(prompt, max_new_tokens=20) for prompt in prompts[:4]]
    expected = tokens(engines.reference(requests))
    engines.close()  # a fresh engine: buffers take their shape from the first mode
    engine = engines.get(TREE)
    assert tokens(engine.run(requests, lambda step: first(step) == (step < 5))) == expected


@pytest.mark.parametrize("sync", ["deferred", "off"])
def test_trap_4_drafted_tokens_are_in_the_vocabulary_after_each_resume(
    sync: str, engines: Engines, prompts: list[list[int]]
) -> None:
    engine = engines.get(EngineConfig("tree", overlap=False, sync=sync))
    worker = engine.scheduler.model_worker
    draft = draft_of(worker)
    vocab = draft_runner_of(worker).model_config.hf_config.draft_vocab_size
    seen: list[Any] = []
    original = draft.draft

    def draft_round(batch: Any, **kwargs: Any) -> Any:
        seen.append(batch.spec_info.topk_index.clone())
        return original(batch, **kwargs)

    draft.draft = draft_round
    try:
        engine.run([Request(p, max_new_tokens=24) for p in prompts[:5]], alternate())
    finally:
        del draft.draft
    assert len(seen) > 5
    assert all(int(index.min()) >= 0 and int(index.max()) < vocab for index in seen)


def test_trap_5_reduced_draft_vocabulary(engines: Engines, prompts: list[list[int]]) -> None:
    engine = engines.get(CHAIN_OFF)
    worker = engine.scheduler.model_worker
    draft = draft_of(worker)
    assert draft.hot_token_id is not None
    assert len(draft.hot_token_id) < worker.target_worker.model_config.vocab_size
    requests = [Request(prompt, max_new_tokens=40) for prompt in prompts[:6]]
    outcomes = engine.run(requests, alternate(4))
    accept = sum(o.accept_length for o in outcomes) / len(outcomes)
    assert accept > 1.8  # drafts of a wrongly mapped vocabulary are all refused
    assert tokens(outcomes) == tokens(engines.reference(requests))


def test_trap_6_statistics_of_an_interval_without_a_round(
    engines: Engines, prompts: list[list[int]]
) -> None:
    engine = engines.get(CHAIN)
    reporter = reporter_of(engine.scheduler)
    interval = engine.scheduler.server_args.decode_log_interval
    outcome = engine.run([Request(prompts[0], max_new_tokens=5 * interval)], plain)[0]
    assert len(outcome.tokens) == 5 * interval
    assert outcome.req.spec_verify_ct == 0  # plain steps are not rounds
    before = reporter.spec_total_num_forward_ct
    engine.run([Request(prompts[0], max_new_tokens=5 * interval)], spec)
    assert reporter.spec_total_num_forward_ct > before


@pytest.mark.parametrize("config", [CHAIN, CHAIN_NORMAL], ids=["overlap", "normal"])
def test_trap_7_bonus_token_types_with_and_without_overlap(
    config: EngineConfig, engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [Request(prompt, max_new_tokens=25) for prompt in prompts[:3]]
    expected = tokens(engines.reference(requests))
    assert tokens(engines.get(config).run(requests, alternate(1))) == expected


@pytest.mark.parametrize(
    "config",
    [CHAIN, CHAIN_EAGER, CHAIN_OFF, TREE_DEFERRED],
    ids=["deferred", "eager", "off", "tree"],
)
def test_trap_8_merge_and_filter_between_modes(
    config: EngineConfig, engines: Engines, prompts: list[list[int]]
) -> None:
    """Requests join a batch that is in the other mode, and leave it one by one."""
    requests = [
        Request(prompt, arrival=2 * index, max_new_tokens=4 + 5 * (index % 5))
        for index, prompt in enumerate(prompts[:16])
    ]
    expected = tokens(engines.reference(requests))
    engine = engines.get(config)
    for script in (alternate(1), alternate(2), alternate(5)):
        outcomes = engine.run(requests, script)
        assert tokens(outcomes) == expected
        drafted = [o.req for o in outcomes if o.req.spec_verify_ct]
        rounds = sum(req.spec_verify_ct for req in drafted)
        accepted = sum(req.spec_num_correct_drafts for req in drafted)
        assert 1 + accepted / rounds > 1.8  # draft states followed their requests


@pytest.mark.parametrize("is_mixed", [False, True], ids=["chunked", "mixed"])
def test_trap_9_chunked_prefill_in_flight_at_a_switch(
    is_mixed: bool, engines: Engines, encode: Encode
) -> None:
    text = " ".join(held_out_prompts(12, seed=40))
    long_prompts = [encode(text)[:150], encode(text)[30:230]]
    requests = [Request(encode(t), max_new_tokens=30) for t in held_out_prompts(3, seed=41)]
    requests += [Request(p, arrival=4, max_new_tokens=12) for p in long_prompts]
    expected = tokens(engines.reference(requests))
    extra = (*FEW_TOKENS, ("enable_mixed_chunk", is_mixed))
    config = EngineConfig("chain", sync="deferred", chunked_prefill_size=32, extra=extra)
    engine = engines.get(config)
    for period in (1, 2, 3):
        assert tokens(engine.run(requests, alternate(period))) == expected
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("sync", ["deferred", "eager", "off"])
def test_trap_10_retraction_around_switches(
    sync: str, engines: Engines, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Admit as if no request were to grow.
    monkeypatch.setattr("sglang.srt.managers.schedule_policy.CLIP_MAX_NEW_TOKENS", 1)
    requests = [
        Request(prompt, arrival=2 * index, max_new_tokens=60)
        for index, prompt in enumerate(prompts[:10])
    ]
    expected = tokens(engines.reference(requests))
    engine = engines.get(EngineConfig("chain", sync=sync, max_total_tokens=420))
    outcomes = engine.run(requests, alternate(4))
    assert sum(o.req.retraction_count for o in outcomes) > 0, "the pool was not too small"
    assert tokens(outcomes) == expected
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_trap_11_no_slot_leaks_over_hundreds_of_requests(
    page_size: int, engines: Engines, prompts: list[list[int]]
) -> None:
    rng = random.Random(page_size)
    requests = [
        Request(rng.choice(prompts)[: rng.randint(2, 12)], i // 3, rng.randint(1, 9))
        for i in range(150)
    ]
    engine = engines.get(EngineConfig("chain", page_size=page_size, extra=FEW_TOKENS))
    outcomes = engine.run(requests, alternate(2))
    assert all(len(o.tokens) == r.max_new_tokens for o, r in zip(outcomes, requests, strict=True))
    assert engine.free_tokens() == engine.initial_free


def test_trap_12_aborts_during_switches_leave_nothing_running(
    engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [
        Request(prompt, max_new_tokens=40, abort_at=5 + index if index % 2 else None)
        for index, prompt in enumerate(prompts[:10])
    ]
    kept = [request for request in requests if request.abort_at is None]
    expected = tokens(engines.reference(kept))
    engine = engines.get(CHAIN)
    outcomes = engine.run(requests, alternate(2))
    assert tokens(outcomes[::2]) == expected
    assert engine.scheduler.running_batch.is_empty()
    assert engine.free_tokens() == engine.initial_free


def test_trap_13_trees(engines: Engines, prompts: list[list[int]]) -> None:
    requests = [Request(prompt, max_new_tokens=40) for prompt in prompts[:6]]
    expected = tokens(engines.reference(requests))
    engine = engines.get(TREE)
    for period in (1, 3, 7):
        outcomes = engine.run(requests, alternate(period))
        assert tokens(outcomes) == expected
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("offset", range(6))
def test_trap_14_context_limit_with_a_switch_in_the_last_tokens(
    offset: int, engines: Engines, encode: Encode
) -> None:
    extra = (("context_length", 128),)
    prompt = encode(" ".join(held_out_prompts(8, seed=50)))[:100]
    request = Request(prompt, max_new_tokens=100)
    expected = engines.reference([request], EngineConfig("none", sync=None, extra=extra))[0]
    engine = engines.get(EngineConfig("chain", sync="off", extra=extra))
    outcome = engine.run([request], lambda step: (step + offset) // 3 % 2 == 0)[0]
    assert outcome.tokens == expected.tokens
    assert outcome.req.finished_reason.to_json() == expected.req.finished_reason.to_json()


def test_trap_15_log_probabilities(engines: Engines, prompts: list[list[int]]) -> None:
    requests = [Request(p, max_new_tokens=20, logprob=True, top_logprobs=3) for p in prompts[:3]]
    expected = engines.reference(requests)
    outcomes = engines.get(CHAIN).run(requests, alternate(2))
    for got, want in zip(outcomes, expected, strict=True):
        count = len(want.tokens)
        assert got.tokens == want.tokens
        mine, theirs = (getattr(o.req, "logprob", o.req) for o in (got, want))
        assert mine.output_token_logprobs_idx[:count] == theirs.output_token_logprobs_idx
        assert mine.output_token_logprobs_val[:count] == pytest.approx(
            theirs.output_token_logprobs_val, abs=1e-4
        )
        top = zip(mine.output_top_logprobs_val[:count], theirs.output_top_logprobs_val, strict=True)
        assert all(a == pytest.approx(b, abs=1e-4) for a, b in top)


@pytest.mark.parametrize("config", [CHAIN, CHAIN_NORMAL, TREE], ids=["overlap", "normal", "tree"])
def test_trap_16_grammar(config: EngineConfig, engines: Engines, encode: Encode) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    sampling = {"json_schema": json.dumps(schema), "ignore_eos": False}
    requests = [
        Request(encode(text), max_new_tokens=60, sampling=sampling)
        for text in held_out_prompts(3, seed=60)
    ]
    expected = engines.reference(requests)
    engine = engines.get(config)
    for period in (1, 2, 5):
        outcomes = engine.run(requests, alternate(period))
        assert tokens(outcomes) == tokens(expected)
    text = engine.scheduler.tokenizer.decode(outcomes[0].tokens, skip_special_tokens=True)
    assert set(json.loads(text)) == {"name", "age"}


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}],
    ids=lambda p: next(iter(p)),
)
def test_trap_17_penalties_in_plain_steps(
    penalty: dict[str, float], engines: Engines, prompts: list[list[int]]
) -> None:
    """Plain steps penalise as a server without speculation does, step by step.

    Upstream's rounds relax penalties (one token per round is counted), so only plain runs compare.
    Without overlap, because with it both servers see each penalty a step late.
    """
    requests = [Request(p, max_new_tokens=150, sampling=penalty) for p in prompts[:3]]
    expected = engines.reference(requests, EngineConfig("none", overlap=False, sync=None))
    unpenalised = engines.reference([Request(p, max_new_tokens=150) for p in prompts[:3]])
    assert tokens(expected) != tokens(unpenalised)
    assert tokens(engines.get(CHAIN_NORMAL).run(requests, plain)) == tokens(expected)


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(
            {"stop": [" the"]},
            marks=pytest.mark.xfail(
                has_worker_batch(),
                reason="on 0.5.12 a round, of static speculation too, goes on past a stop string",
                strict=True,
            ),
        ),
        {"stop_token_ids": [32]},
        {"min_new_tokens": 5, "ignore_eos": False},
        {"ignore_eos": True},
    ],
    ids=["stop", "stop_token_ids", "min_new_tokens", "ignore_eos"],
)
def test_trap_18_stop_conditions(
    sampling: dict[str, Any], engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [Request(p, max_new_tokens=30, sampling=sampling) for p in prompts[:6]]
    expected = engines.reference(requests)
    for period in (1, 3):
        outcomes = engines.get(CHAIN).run(requests, alternate(period))
        assert tokens(outcomes) == tokens(expected)
        reasons = [o.req.finished_reason.to_json() for o in outcomes]
        assert reasons == [o.req.finished_reason.to_json() for o in expected]


def test_trap_23_max_running_requests_is_not_lowered(engines: Engines) -> None:
    without = EngineConfig("none", sync=None, max_running_requests=None)
    expected = engines.get(without).scheduler.max_running_requests
    capped = engines.get(EngineConfig("chain", sync=None, max_running_requests=None))
    assert capped.scheduler.max_running_requests == 48  # upstream, without the toggle
    toggled = engines.get(EngineConfig("chain", sync="off", max_running_requests=None))
    assert toggled.scheduler.max_running_requests == expected != 48


@pytest.mark.parametrize(
    "config", [CHAIN, CHAIN_EAGER, CHAIN_OFF], ids=["deferred", "eager", "off"]
)
def test_trap_24_flush_and_idle_between_requests(
    config: EngineConfig, engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [Request(prompt, max_new_tokens=15) for prompt in prompts[:4]]
    expected = tokens(engines.reference(requests))
    engine = engines.get(config)
    for script in (plain, spec, alternate(1)):
        assert tokens(engine.run(requests, script)) == expected  # ends idle
        assert engine.toggle.draft_sync.pending == 0
        engine.flush()
        assert engine.scheduler.tree_cache.evictable_size() == 0
        assert engine.free_tokens() == engine.initial_free


def test_trap_24_abort_of_everything_in_plain(engines: Engines, prompts: list[list[int]]) -> None:
    requests = [Request(prompt, max_new_tokens=30) for prompt in prompts[:4]]
    expected = tokens(engines.reference(requests))
    engine = engines.get(CHAIN)
    engine.on_step = lambda step: engine.abort_all() if step == 12 else None
    engine.run(requests, plain)
    engine.on_step = None
    assert engine.toggle.draft_sync.pending == 0
    assert tokens(engine.run(requests, alternate(3))) == expected
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_trap_24_pause_and_continue_in_plain(
    mode: str, engines: Engines, prompts: list[list[int]]
) -> None:
    from sglang.srt.managers import io_struct

    requests = [Request(prompt, max_new_tokens=30) for prompt in prompts[:4]]
    expected = tokens(engines.reference(requests))
    engine = engines.get(CHAIN)

    def pause(step: int) -> None:
        if step == 12:
            engine.scheduler.pause_generation(io_struct.PauseGenerationReqInput(mode=mode))
        if step == 16:
            request = io_struct.ContinueGenerationReqInput(torch_empty_cache=False)
            engine.scheduler.continue_generation(request)

    for script in (plain, lambda step: step < 14):
        engine.on_step = pause
        assert tokens(engine.run(requests, script)) == expected
        engine.on_step = None
    assert engine.toggle.draft_sync.pending == 0
    assert engine.free_tokens() == engine.initial_free
