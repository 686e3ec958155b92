"""The profile at start on a real GPU: complete, fast, saved, and without a trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_toggle.policy import Mode
from spec_toggle.profile_store import read_profile
from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request, has_gpu
from tests.engine.host import has_worker_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="NOT RUN: needs a CUDA GPU"),
    pytest.mark.skipif(has_worker_batch(), reason="NOT RUN: 0.5.12.post1 times nothing at start"),
]

Encode = Callable[[str], list[int]]


@pytest.mark.parametrize("speculation", ["chain", "tree"])
@pytest.mark.parametrize("sync", ["off", "eager"])
def test_the_profile_at_start(
    speculation: str,
    sync: str,
    engines: Engines,
    encode: Encode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = [Request(encode(t), max_new_tokens=40) for t in held_out_prompts(6, seed=31)]
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    monkeypatch.setenv("SPEC_TOGGLE_CACHE", str(tmp_path))
    config = EngineConfig(speculation, sync=sync, extra=(("dynamic_spec_policy", "auto"),))
    engine = engines.get(config)
    (path,) = (tmp_path / "profiles").glob("*.json")
    table = read_profile(path).table
    assert engine.toggle.controller.observations.costs.table == table
    assert all(map(all, table.plain_count[:1])) and all(map(all, table.round_count[:1]))
    assert 0.5 < table.break_even(1, table.contexts[0]) < 20
    assert not engine.scheduler.req_to_token_pool.req_to_token.any()
    assert engine.free_tokens() == engine.initial_free
    outcomes = engine.run(requests, lambda step: step % 5 < 2)
    assert [outcome.tokens for outcome in outcomes] == expected

    written = path.stat().st_mtime_ns
    engines.close()
    started = time.perf_counter()
    engine = engines.get(config)
    again = engine.toggle.controller.observations.costs.table
    kept = path.stat().st_mtime_ns == written
    assert kept == (again == table), "a table that still holds is read, another one is saved"
    print(f"second start {time.perf_counter() - started:.1f} s, profile kept: {kept}")
    assert again.ms(Mode.PLAIN, 4, 256) == pytest.approx(table.ms(Mode.PLAIN, 4, 256), rel=0.5)
