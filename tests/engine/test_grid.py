"""The grid benchmark on the CPU engine: every arm under a steady load, one start per engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.steady_load import Load, Prompts
from tests.engine.benchmark_runs import run_benchmark
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request

pytestmark = pytest.mark.slow


def test_cells_are_what_their_arm_and_accept_length_say(tmp_path: Path) -> None:
    shape = ("--model", "dummy-tiny", "--levels", "1", "4", "--contexts", "48", "1100")
    sizes = ("--long-levels", "4")
    arms = run_benchmark(
        tmp_path,
        "grid",
        "intel_amx",
        *("--arms", "none,static,plain_deferred,static_again", "--accepts", "1.6", "3.4"),
        *("--window-s", "0.5", "--passes", "2"),
        *shape,
        *sizes,
        *("--model-dir", str(tmp_path / "models")),
    )
    assert set(arms["none"]) == {"48", "1100"} and set(arms["none"]["1100"]["any"]) == {"4"}
    for accept in ("1.6", "3.4"):
        for level, cell in arms["static"]["48"][accept].items():
            # Floor and ceiling take turns: in each of the two windows, less than a token is off.
            rounds = cell["tokens"] / cell["accept_len"] / int(level)
            assert cell["accept_len"] == pytest.approx(float(accept), abs=2 / rounds)
            assert rounds > 8
            assert cell["tokens"] / cell["output_tok_s"] >= 2 * 0.5, "seconds, of both windows"
    for cell in arms["plain_deferred"]["48"]["any"].values():
        assert cell["plain_share"] == 1 and cell["accept_len"] is None and cell["ratio"] > 0
        assert cell["prefill_s"] > 0
    pair = [arms[arm]["48"]["1.6"]["1"] for arm in ("static", "static_again")]
    mean = sum(cell["output_tok_s"] for cell in pair) / 2
    without = arms["none"]["48"]["any"]["1"]["output_tok_s"]
    for cell in pair:
        assert cell["ratio"] == pytest.approx(cell["output_tok_s"] / max(mean, without))
    assert "ratio" not in arms["none"]["48"]["any"]["1"]


def test_requests_that_end_are_replaced_also_while_one_waits(engines: Engines) -> None:
    engine = engines.get(EngineConfig("none", sync=None, max_running_requests=1))
    requests = [Request([5, 6, 7], 0, length) for length in (1, 8)]
    load = Load(engine, requests, lambda: Request([5, 6, 7], 0, 8))

    def script() -> Iterator[None]:
        for _ in range(400):  # without successors there are 9 tokens
            if load.tokens >= 20:
                return
            yield

    load.run(script())
    assert load.seen().tokens >= 20
    assert engine.scheduler.is_fully_idle()


def test_long_prompts_share_documents() -> None:
    prompts = Prompts(vocab_size=100, length=40, documents=2, own=4)
    documents = {tuple(request.prompt) for request in prompts.warm_up()}
    taken = prompts.take(8)
    assert {tuple(request.prompt[:36]) for request in taken} == documents
    assert {len(request.prompt) for request in taken} == {40}
