"""What only a GPU can show: native DECODE graphs are captured, replayed and bounded in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request, has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="NOT RUN: needs a CUDA GPU"),
]

Encode = Callable[[str], list[int]]
CHAIN_OFF = EngineConfig("chain", sync="off", max_running_requests=20)


@pytest.fixture(scope="module")
def prompts(encode: Encode) -> list[list[int]]:
    return [encode(text) for text in held_out_prompts(24, seed=71)]


@pytest.mark.parametrize("sync", ["deferred", "eager", "off"])
@pytest.mark.parametrize(
    ("speculation", "overlap"), [("chain", True), ("chain", False), ("tree", True)]
)
def test_plain_steps_replay_graphs(
    speculation: str, overlap: bool, sync: str, engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [Request(prompt, max_new_tokens=40) for prompt in prompts[:5]]
    expected = [o.tokens for o in engines.reference(requests)]
    engine = engines.get(EngineConfig(speculation, overlap=overlap, sync=sync))
    outcomes = engine.run(requests, lambda step: step // 3 % 2 == 1)
    graphs, totals = engine.toggle.graphs, engine.toggle.controller.totals
    assert [o.tokens for o in outcomes] == expected
    assert graphs.replays == totals.plain_steps > 5
    assert graphs.eager_steps == 0


def test_every_captured_batch_size_and_its_neighbours(
    engines: Engines, prompts: list[list[int]]
) -> None:
    requests = [Request(prompt, max_new_tokens=12) for prompt in prompts[:20]]
    expected = [o.tokens for o in engines.reference(requests)]
    engine = engines.get(CHAIN_OFF)
    captured = engine.toggle.graphs.batch_sizes
    sizes = sorted({s for c in captured for s in (c - 1, c, c + 1) if 0 < s <= 20} | {20})
    for size in sizes:
        outcomes = engine.run(requests[:size], lambda step: step % 4 < 2)
        assert [o.tokens for o in outcomes] == expected[:size], f"batch size {size}"
    past_the_largest = max(sizes) > captured[-1]
    assert past_the_largest == (engine.toggle.graphs.eager_steps > 0)


def test_the_host_never_waits_in_plain_steps(
    engines: Engines, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain steps, prompts between them, and writes of pending draft KV."""
    few = EngineConfig("chain", sync="deferred", extra=(("dynamic_spec_sync_tokens", 64),))
    engine = engines.get(few)
    sync, step = engine.toggle.draft_sync, engine.toggle._plain_step
    requests = [Request(p, arrival=9 * i, max_new_tokens=40) for i, p in enumerate(prompts[:8])]

    def always(_: int) -> bool:
        return True

    monkeypatch.setattr(sync, "_checks", False)
    engine.run(requests, always)
    engine.flush()
    for owner, name in ((step, "run"), (sync, "after_plain_step"), (sync, "_prefill")):
        monkeypatch.setattr(owner, name, _without_waits(getattr(owner, name)))
    flushes: list[float] = []
    monkeypatch.setattr(sync, "on_flush", flushes.append)
    engine.run(requests, always)
    assert len(flushes) > 3


def _without_waits(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, at which PyTorch raises when the host waits for the device."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return watched


def test_added_memory_is_bounded(engines: Engines) -> None:
    graphs = engines.get(CHAIN_OFF).toggle.graphs
    assert 0 <= graphs.memory_gb < 1.0
    assert graphs.capture_s < 20
