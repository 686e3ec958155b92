"""What only a GPU can show: native DECODE graphs are captured, replayed and bounded in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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


def test_added_memory_is_bounded(engines: Engines) -> None:
    graphs = engines.get(CHAIN_OFF).toggle.graphs
    assert 0 <= graphs.memory_gb < 1.0
    assert graphs.capture_s < 20
