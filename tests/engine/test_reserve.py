"""KV slots of plain steps: reserved for many at a time, and never fewer than a round needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spec_toggle.compat import replaced
from spec_toggle.reference.tiny_text import held_out_prompts
from spec_toggle.reserve import AHEAD
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request, Script
from tests.engine.host import has_worker_batch

Encode = Callable[[str], list[int]]

CHAIN = EngineConfig("chain", sync="deferred")
TREE = EngineConfig("tree", sync="deferred")

pytestmark = pytest.mark.skipif(
    has_worker_batch(), reason="0.5.12 reserves in a method that has no seam for it"
)


@pytest.fixture(scope="module")
def prompts(encode: Encode) -> list[list[int]]:
    return [encode(text) for text in held_out_prompts(8, seed=29)]


class Reservations:
    """KV slots that each iteration took from the pool, and the fewest any request then had ahead.

    Ahead: of the committed length, which is what the host tops up from.
    """

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.fewest = 1 << 30

    def watch(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        self.taken.append(kwargs["num_needed_tokens"])
        ahead = [req.kv.kv_allocated_len - req.kv.kv_committed_len for req in kwargs["reqs"]]
        self.fewest = min(self.fewest, *ahead)


@pytest.fixture
def reservations() -> Iterator[Reservations]:
    from sglang.srt.speculative import eagle_utils

    seen, original = Reservations(), eagle_utils.alloc_for_spec_decode
    watch = lambda *args, **kwargs: seen.watch(original, *args, **kwargs)  # noqa: E731
    with replaced(eagle_utils, alloc_for_spec_decode=watch):
        yield seen


def round_needs() -> int:
    from sglang.srt.speculative import eagle_utils

    return int(eagle_utils.get_alloc_reserve_per_decode())


@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_plain_steps_go_to_the_pool_once_in_many(
    config: EngineConfig, engines: Engines, prompts: list[list[int]], reservations: Reservations
) -> None:
    requests = [Request(prompt, max_new_tokens=100) for prompt in prompts[:3]]
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    outcomes = engines.get(config).run(requests, lambda _: True)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert len(reservations.taken) >= 99
    visits = sum(taken > 0 for taken in reservations.taken)
    assert 1 + 99 // (AHEAD + 1) <= visits <= 3 + 100 // AHEAD
    assert reservations.fewest >= round_needs()


def test_a_pool_full_of_cached_prefixes_gives_slots_as_well(
    engines: Engines, prompts: list[list[int]], reservations: Reservations
) -> None:
    requests = [Request(prompt, max_new_tokens=100) for prompt in prompts[:2]]
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    engine = engines.get(EngineConfig("chain", sync="deferred", max_total_tokens=700))
    for prompt in prompts[2:]:
        engine.run([Request(prompt, max_new_tokens=100)], lambda _: True)
    allocator = engine.scheduler.token_to_kv_pool_allocator
    assert allocator.available_size() < 100, "half of what the run below writes"
    reservations.taken.clear()
    outcomes = engine.run(requests, lambda _: True)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert sum(taken > 0 for taken in reservations.taken) <= 3 + 100 // AHEAD


@pytest.mark.parametrize("period", [1, 5, 23])
def test_every_iteration_has_the_slots_of_a_round(
    period: int, engines: Engines, prompts: list[list[int]], reservations: Reservations
) -> None:
    script: Script = lambda step: step // period % 2 == 0  # noqa: E731
    requests = [
        Request(prompt, arrival=3 * index, max_new_tokens=60)
        for index, prompt in enumerate(prompts)
    ]
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    outcomes = engines.get(CHAIN).run(requests, script)
    assert [outcome.tokens for outcome in outcomes] == expected
    assert reservations.fewest >= round_needs()


def test_rounds_take_what_the_host_gives_them(
    engines: Engines, prompts: list[list[int]], reservations: Reservations
) -> None:
    engine = engines.get(CHAIN)
    engine.run([Request(prompts[0], max_new_tokens=60)], lambda _: False)
    assert max(reservations.taken) <= round_needs()
