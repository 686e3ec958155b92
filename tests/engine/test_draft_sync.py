"""Deferred sync leaves the draft as eager sync does: its state, its KV cache, its acceptance."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request, Script, StepEngine

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
    draft, pool = worker.draft_worker, worker.draft_worker.draft_runner.token_to_kv_pool
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

    draft.draft = draft_round
    try:
        engine.run(requests, script)
    finally:
        del draft.draft
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
        for name in ("hidden_states", "keys", "values", *(() if is_chain else ("topk_p",))):
            torch.testing.assert_close(entry[name], other[name], rtol=0, atol=0)


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers that compute each row alone: a row's rounding then ignores its neighbours.

    A matrix product picks its order of summation by the number of rows, which is all that differs
    between one draft forward per token and one for many.
    """
    if not torch.cuda.is_available():
        linear = torch.nn.functional.linear

        def rows(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
            flat = x.reshape(-1, x.shape[-1])
            out = torch.stack([linear(row, weight, bias) for row in flat])
            return out.reshape(*x.shape[:-1], -1)

        monkeypatch.setattr(torch.nn.functional, "linear", rows)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
@pytest.mark.parametrize("sync_tokens", [1, 7, 40, 1024])
@pytest.mark.parametrize("speculation", ["chain", "tree"])
def test_rounds_start_from_the_state_of_eager_sync(
    speculation: str,
    sync_tokens: int,
    overlap: bool,
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
