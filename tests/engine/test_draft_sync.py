"""Deferred sync leaves the draft as eager sync does: its state, its KV cache, its acceptance."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_toggle import adapters
from spec_toggle.reference import attention_ops
from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request, Script, ScriptedPolicy, StepEngine
from tests.engine.host import draft_of, draft_runner_of, updater_of

pytestmark = pytest.mark.usefixtures("wrong_forecasts")
Encode = Callable[[str], list[int]]
Rounds = list[dict[str, Any]]


def deferred(speculation: str = "chain", sync_tokens: int = 1024, **values: Any) -> EngineConfig:
    extra = (*values.pop("extra", ()), ("dynamic_spec_sync_tokens", sync_tokens))
    return EngineConfig(speculation, sync="deferred", extra=extra, **values)


@pytest.fixture(scope="module")
def prompts(encode: Encode) -> list[list[int]]:
    return [encode(text) for text in held_out_prompts(24, seed=37)]


def record_rounds(engine: StepEngine, requests: list[Request], script: Script) -> Rounds:
    """The draft state and draft KV that every round of every request starts from."""
    worker = engine.scheduler.model_worker
    draft, pool = draft_of(worker), draft_runner_of(worker).token_to_kv_pool
    table = worker.req_to_token_pool.req_to_token
    rounds: Rounds = []
    original = draft.draft

    def draft_round(batch: Any, **kwargs: Any) -> Any:
        state = batch.spec_info
        for i, req in enumerate(batch.reqs):
            length = int(batch.seq_lens[i])
            slots = table[int(batch.req_pool_indices[i]), :length].long()
            rounds.append(
                {
                    "key": (tuple(req.origin_input_ids), length),
                    "topk_index": state.topk_index[i].clone(),
                    "topk_p": state.topk_p[i].clone(),
                    "hidden_states": state.hidden_states[i].clone(),
                    "keys": pool.get_key_buffer(0)[slots].clone(),
                    "values": pool.get_value_buffer(0)[slots].clone(),
                }
            )
        return original(batch, **kwargs)

    totals = engine.toggle.controller.totals
    before = totals.plain_steps
    draft.draft = draft_round
    try:
        engine.run(requests, script)
    finally:
        del draft.draft
    assert (totals.plain_steps > before) == any(map(script, range(20)))
    return rounds


def assert_same_rounds(found: Rounds, expected: Rounds) -> None:
    by_key = {entry["key"]: entry for entry in expected}
    assert len(found) == len(expected) > 20
    for entry in found:
        other = by_key[entry["key"]]
        assert torch.equal(entry["topk_index"], other["topk_index"])
        # A chain takes its one branch whatever its probability: SGLang writes 1.0 after a decode
        # and the probability itself after a prefill.
        is_chain = len(entry["topk_index"]) == 1
        for name in ("keys", "values", "hidden_states", *(() if is_chain else ("topk_p",))):
            torch.testing.assert_close(entry[name], other[name], rtol=0, atol=0)


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers and attention that compute each row alone: its rounding ignores its neighbours.

    A matrix product picks its order of summation by the number of rows, and by the processor, which
    is all that differs between one draft forward per token and one for many.
    """
    linear, attend = torch.nn.functional.linear, attention_ops._attend

    def rows(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.stack([linear(row, weight, bias) for row in flat])
        return out.reshape(*x.shape[:-1], -1)

    def queries(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        hidden: torch.Tensor | None,
        *scaling: float,
    ) -> torch.Tensor:
        """What a query must not see is left out, as it is for a token that comes alone."""
        visible = torch.ones((len(query), len(keys)), dtype=torch.bool)
        if hidden is not None:
            visible[:, len(keys) - len(query) :] = ~hidden
        each = zip(query.split(1), visible, strict=True)
        return torch.cat([attend(q, keys[seen], values[seen], None, *scaling) for q, seen in each])

    monkeypatch.setattr(torch.nn.functional, "linear", rows)
    monkeypatch.setattr(attention_ops, "_attend", queries)


@pytest.mark.parametrize(
    ("speculation", "overlap", "sync_tokens"),
    [
        ("chain", True, 1),
        ("chain", True, 40),
        ("chain", True, 1024),
        ("chain", False, 7),
        ("chain", False, 1024),
        ("tree", True, 7),
        ("tree", False, 1024),
    ],
)
def test_rounds_start_from_the_state_of_eager_sync(
    speculation: str,
    overlap: bool,
    sync_tokens: int,
    engines: Engines,
    prompts: list[list[int]],
    row_by_row: None,
) -> None:
    """Exactly: top-k, hidden state and every draft KV entry of every request of every round."""
    rng = random.Random(speculation)
    requests = [Request(p, rng.randrange(20), 24 + i) for i, p in enumerate(prompts[:7])]
    modes = [rng.random() < 0.6 for _ in range(400)]
    script: Script = lambda step: modes[step]  # noqa: E731
    eager = engines.get(EngineConfig(speculation, overlap=overlap, sync="eager"))
    expected = record_rounds(eager, requests, script)
    engine = engines.get(deferred(speculation, sync_tokens, overlap=overlap))
    assert_same_rounds(record_rounds(engine, requests, script), expected)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["chunked", "mixed"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_chunked_and_mixed_prefills_leave_the_state_of_eager_sync(
    overlap: bool, is_mixed: bool, engines: Engines, encode: Encode, row_by_row: None
) -> None:
    rng = random.Random(is_mixed)
    text = " ".join(held_out_prompts(12, seed=40))
    long_prompts = [encode(text)[start:end] for start, end in ((0, 150), (30, 230), (60, 130))]
    requests = [
        Request(encode(t), rng.randrange(6), 44 + i)
        for i, t in enumerate(held_out_prompts(4, seed=41))
    ]
    requests += [Request(p, 3 + 4 * i, 12 + i) for i, p in enumerate(long_prompts)]
    modes = [rng.random() < 0.6 for _ in range(500)]
    found = {}
    for sync in ("eager", "deferred"):
        extra = (("enable_mixed_chunk", is_mixed), ("dynamic_spec_sync_tokens", 24))
        config = EngineConfig(sync=sync, overlap=overlap, chunked_prefill_size=32, extra=extra)
        engine = engines.get(config)
        engine.flush()
        found[sync] = record_rounds(engine, requests, lambda step: modes[step])
    assert_same_rounds(found["deferred"], found["eager"])


def second_turns(engine: StepEngine, requests: list[Request], encode: Encode) -> list[Request]:
    """Serve the first turns in PLAIN, and make prompts that begin with all of their tokens."""
    outcomes = engine.run(requests, lambda _: True)
    more = encode(" and then")
    return [
        Request([*request.prompt, *outcome.tokens, *more], max_new_tokens=40)
        for request, outcome in zip(requests, outcomes, strict=True)
    ]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_trap_19_a_prefix_written_in_plain_has_its_draft_kv(
    overlap: bool,
    engines: Engines,
    prompts: list[list[int]],
    encode: Encode,
    row_by_row: None,
) -> None:
    """The draft KV of a prefix from the cache equals that of eager sync, exactly."""
    requests = [Request(prompt, 2 * i, 30 + 3 * i) for i, prompt in enumerate(prompts[:5])]
    found = {}
    for config in (EngineConfig(overlap=overlap, sync="eager"), deferred(overlap=overlap)):
        engine = engines.get(config)
        engine.flush()
        turns = second_turns(engine, requests, encode)
        found[config.sync] = record_rounds(engine, turns, lambda _: False)
        cached = [outcome.req.cached_tokens for outcome in engine.run(turns, lambda _: False)]
        assert min(cached) > 30  # the prefixes did come from the cache
    assert_same_rounds(found["deferred"], found["eager"])


def test_trap_20_prefix_hits_equal_those_without_speculation(
    engines: Engines, prompts: list[list[int]], encode: Encode
) -> None:
    requests = [Request(prompt, 2 * i, 20 + 5 * i) for i, prompt in enumerate(prompts[:6])]
    hits = {}
    for config in (EngineConfig("none", sync=None), deferred(sync_tokens=24)):
        engine = engines.get(config)
        engine.flush()
        has_toggle = config.sync is not None
        outcomes = engine.run(requests, (lambda step: step // 4 % 2 == 0) if has_toggle else None)
        turns = [
            Request([*request.prompt, *outcome.tokens, 5, 6, 7], max_new_tokens=8)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]
        second = engine.run(turns, (lambda _: True) if has_toggle else None)
        hits[config.sync] = [outcome.req.cached_tokens for outcome in second]
    # A round that ends a request may leave out the KV of its last token.
    lost = [without - found for found, without in zip(hits["deferred"], hits[None], strict=True)]
    assert set(lost) <= {0, 1} and min(hits[None]) > 30


def test_the_draft_kv_of_retracted_requests_is_right(
    engines: Engines,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    row_by_row: None,
) -> None:
    """A retracted request loses its slots to others with its tokens still pending."""
    # Attention over one row rounds unlike that over a long prompt, and these are long by the end.
    monkeypatch.setattr(ScriptedPolicy, "expects_plain", lambda *_: False)
    monkeypatch.setattr("sglang.srt.managers.schedule_policy.CLIP_MAX_NEW_TOKENS", 1)
    requests = [Request(prompt, 2 * i, 60) for i, prompt in enumerate(prompts[:10])]

    def script(step: int) -> bool:
        return step % 40 < 30

    eager = engines.get(EngineConfig(max_total_tokens=420, sync="eager"))
    expected = record_rounds(eager, requests, script)
    engine = engines.get(deferred(max_total_tokens=420))
    writer, given_away = engine.toggle.draft_sync._writer, []
    write = writer.write

    def write_once(entries: Any) -> None:
        kept = entries.slots[entries.slots > 0]
        assert len(kept.unique()) == len(kept)  # their order of writing is not defined on a GPU
        given_away.append(len(entries.slots) - len(kept))
        write(entries)

    monkeypatch.setattr(writer, "write", write_once)
    found = record_rounds(engine, requests, script)
    assert sum(given_away) > 0
    assert_same_rounds(found, expected)
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_the_draft_does_not_run_over_the_prompts_of_a_burst(
    overlap: bool, engines: Engines, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle server is in SPEC, and decodes a burst above the threshold plainly. The next burst
    is taken to be like the last: a wrong guess only moves the draft's work into the first round."""
    extra = (("dynamic_spec_threshold", 3),)
    engine = engines.get(deferred(overlap=overlap, extra=extra))
    totals, runner = engine.toggle.controller.totals, draft_runner_of(engine.scheduler.model_worker)
    forward, prefills = runner.forward, []

    def watched(batch: Any, *args: Any, **kwargs: Any) -> Any:
        # A round, or a resume, runs the draft over a few tokens of a request.
        prefills.append(len(batch.input_ids) > 6 * batch.batch_size)
        return forward(batch, *args, **kwargs)

    monkeypatch.setattr(runner, "forward", watched)
    few, many = ([Request(p, max_new_tokens=12) for p in prompts[:n]] for n in (3, 6))
    assert min(map(len, prompts[:6])) > 12
    for requests, runs_over_prompts in ((few, True), (many, False), (few, False), (few, True)):
        prefills.clear()
        plain_steps = totals.plain_steps
        engine.flush()  # no prompt is cached
        engine.run(requests)
        assert (totals.plain_steps > plain_steps) == (requests is many)
        assert any(prefills) == runs_over_prompts


def test_acceptance_after_long_plain_phases_equals_that_of_a_run_that_was_never_off(
    engines: Engines, encode: Encode
) -> None:
    requests = [Request(encode(t), max_new_tokens=96) for t in held_out_prompts(16, seed=5)]

    def accept_length(config: EngineConfig, script: Script) -> float:
        reqs = [outcome.req for outcome in engines.get(config).run(requests, script)]
        drafts = sum(r.spec_num_correct_drafts for r in reqs)
        return 1 + drafts / sum(r.spec_verify_ct for r in reqs)

    def mostly_plain(step: int) -> bool:
        return step % 20 < 14

    never = accept_length(deferred(), lambda _: False)
    warm = accept_length(deferred(), mostly_plain)
    eager = accept_length(EngineConfig(sync="eager"), mostly_plain)
    assert never > 1.8
    assert warm == pytest.approx(eager, rel=0.005)
    assert warm == pytest.approx(never, rel=0.05)


def test_writes_leave_out_the_queries(engines: Engines) -> None:
    from spec_toggle.draft_kv import DraftKvWriter, KeyValueProjection

    worker = engines.get(deferred()).scheduler.model_worker
    (fused,) = DraftKvWriter(worker).projections
    hidden = torch.randn(7, fused.weight.shape[1], dtype=fused.weight.dtype).to(worker.device)
    with torch.inference_mode():
        (expected, _), (found, bias) = fused(hidden), KeyValueProjection(fused)(hidden)
    queries = fused.q_proj_shard_size
    assert bias is None and found.shape == expected.shape
    torch.testing.assert_close(found[:, queries:], expected[:, queries:])
    assert not found[:, :queries].any()


@pytest.mark.parametrize(
    "values",
    [
        {"quant_method": object(), "bias": None},
        {"bias": torch.zeros(4)},
        {"bias": None, "use_intel_amx_backend": True},
    ],
    ids=["quantized", "bias", "packed"],
)
def test_projections_that_are_more_than_a_matrix_stay_whole(values: dict[str, Any]) -> None:
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    from spec_toggle.draft_kv import KeyValueProjection

    plain = {"quant_method": UnquantizedLinearMethod(), "bias": None}
    assert KeyValueProjection.fits(SimpleNamespace(**plain))
    assert not KeyValueProjection.fits(SimpleNamespace(**{**plain, **values}))


def test_nothing_is_pending_once_idle_or_when_memory_is_released(
    engines: Engines, prompts: list[list[int]]
) -> None:
    """Memory may be released one iteration before the scheduler first idles."""
    engine = engines.get(deferred())
    scheduler, seen, released = engine.scheduler, [], []

    def watch(_: int) -> None:
        seen.append(engine.toggle.draft_sync.pending)
        if scheduler.is_fully_idle() and seen[-1]:
            adapters.release_memory(updater_of(scheduler))
            released.append(engine.toggle.draft_sync.pending)

    engine.on_step = watch
    engine.run([Request(p, max_new_tokens=20) for p in prompts[:3]], lambda _: True)
    engine.on_step = None
    assert max(seen) > 30 and seen[-1] == 0
    assert set(released) == {0}


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_a_sync_that_changes_in_the_middle_of_a_run_stays_warm(
    overlap: bool, engines: Engines, prompts: list[list[int]], row_by_row: None
) -> None:
    rng = random.Random(5)
    requests = [Request(p, rng.randrange(20), 40 + i) for i, p in enumerate(prompts[:7])]
    modes = [rng.random() < 0.6 for _ in range(400)]

    def script(step: int) -> bool:
        return modes[step]

    eager = engines.get(EngineConfig(overlap=overlap, sync="eager"))
    expected = record_rounds(eager, requests, script)
    engine = engines.get(deferred(overlap=overlap))
    kinds = ["eager", "deferred"]

    def change(iteration: int) -> None:
        if iteration % 5 == 4:
            engine.toggle.change_draft_sync(kinds[iteration // 5 % 2])

    engine.on_step = change
    try:
        assert_same_rounds(record_rounds(engine, requests, script), expected)
    finally:
        engine.on_step = None
        engine.toggle.change_draft_sync("deferred")
