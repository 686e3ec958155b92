"""The ModelWorkerBatch generation (0.5.12): what its plain steps must leave of a batch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import ARMS, Setup, server_command
from benchmarks.models import resolve_models
from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request
from tests.engine.host import has_worker_batch

pytestmark = pytest.mark.skipif(
    not has_worker_batch(), reason="NOT RUN: needs SGLang 0.5.12.post1, see `make test-0512`"
)

Encode = Callable[[str], list[int]]
PLAIN: Callable[[int], bool] = lambda _: True  # noqa: E731


@pytest.fixture(scope="module")
def prompts(encode: Encode) -> list[list[int]]:
    return [encode(text) for text in held_out_prompts(8, seed=23)]


@pytest.mark.parametrize("sync", ["deferred", "eager", "off"])
@pytest.mark.parametrize(
    ("speculation", "overlap"), [("chain", True), ("chain", False), ("tree", False)]
)
def test_the_schedulers_batch_is_never_seen_stripped(
    speculation: str, overlap: bool, sync: str, engines: Engines, prompts: list[list[int]]
) -> None:
    """After every forward its batch is speculative, with a row of draft state per request."""
    engine = engines.get(EngineConfig(speculation, overlap=overlap, sync=sync))
    scheduler: Any = engine.scheduler
    run_batch = type(scheduler).run_batch
    seen = []

    def checked(batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = run_batch(scheduler, batch, *args, **kwargs)
        assert not batch.spec_algorithm.is_none()
        state = result.next_draft_input if overlap else batch.spec_info
        rows = {len(getattr(state, name)) for name in ("bonus_tokens", "topk_p", "hidden_states")}
        if getattr(result, "is_plain_step", False):
            assert rows == {len(batch.reqs)}
            assert len(result.next_token_ids) == len(batch.reqs)
            seen.append(len(batch.reqs))
        return result

    scheduler.run_batch = checked
    try:
        engine.run([Request(p, i, 6 + i) for i, p in enumerate(prompts)], PLAIN)
    finally:
        del scheduler.run_batch
    assert max(seen) > 3 and engine.toggle.runs_ordinary_steps is not overlap
    assert engine.free_tokens() == engine.initial_free


@pytest.mark.parametrize("speculation", ["chain", "tree"])
@pytest.mark.parametrize("leaving", range(4))
def test_a_request_that_ends_in_any_place_of_the_batch(
    leaving: int, speculation: str, engines: Engines, prompts: list[list[int]]
) -> None:
    """Its row of draft state leaves with it, and a request that joins then gets its own."""
    lengths = [12] * 4
    lengths[leaving] = 5
    requests = [Request(p, 0, n) for p, n in zip(prompts[:4], lengths, strict=True)]
    requests.append(Request(prompts[4], 6, 12))  # joins as the other leaves
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    engine = engines.get(EngineConfig(speculation, overlap=False, sync="deferred"))
    for first_plain in range(8):
        outcomes = engine.run(requests, lambda step, at=first_plain: at <= step < at + 3)
        assert [outcome.tokens for outcome in outcomes] == expected


@pytest.mark.parametrize("overlap", [True, False])
def test_unset_the_limit_is_not_lowered(overlap: bool, engines: Engines) -> None:
    config = EngineConfig("chain", overlap=overlap, max_running_requests=None)
    assert engines.get(config).scheduler.server_args.max_running_requests is None


def test_without_the_toggle_too_a_round_goes_on_past_a_stop_string(
    engines: Engines, prompts: list[list[int]]
) -> None:
    """Why trap 18 fails with one: it is looked for, not its place among a round's tokens."""
    sampling = {"stop": [" the"]}
    requests = [Request(p, max_new_tokens=30, sampling=sampling) for p in prompts[:6]]
    expected = [outcome.tokens for outcome in engines.reference(requests)]
    static = engines.get(EngineConfig("chain", sync=None)).run(requests)
    extra = [outcome.tokens[len(want) :] for outcome, want in zip(static, expected, strict=True)]
    assert [o.tokens[: len(w)] for o, w in zip(static, expected, strict=True)] == expected
    assert any(extra)


@pytest.mark.parametrize("arm", ARMS)
def test_the_flags_of_the_envelope_benchmark_are_known(arm: str, tmp_path: Path) -> None:
    from sglang.srt.server_args import ServerArgs

    setup = Setup(
        models=resolve_models("dummy-tiny", None, tmp_path),
        **{"device": "cuda", "attention": "triton", "spec": "tree", "accept": 2.6},
        **{"threshold": 24, "sync": "deferred", "input_len": 16, "output_len": 16, "levels": (1,)},
    )
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    command = server_command(arm, setup, 30000)
    parsed = parser.parse_args(command[command.index("--host") :])
    assert parsed.cuda_graph_max_bs == 256
