"""Two tensor-parallel ranks on two GPUs: forced switches and retraction under load, over NCCL.

The servers check before every iteration that the ranks are about to run the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import requests

from spec_toggle.demo.server import Engine, Server
from spec_toggle.reference.tiny_pair import build_tiny_pair, held_out_prompts
from tests.engine.harness import DEVICES
from tests.engine.test_operation_http import samples
from tests.engine.test_tensor_parallel import TP, alternate, check_idle, generate


def gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(gpus() < 2, reason="NOT RUN: needs two CUDA GPUs"),
    pytest.mark.timeout(200, func_only=True),
]

# Beside each other: each takes its share of both GPUs.
GPU = Engine(
    launcher=(),
    flags=(
        *("--attention-backend", DEVICES["cuda"]["attention_backend"], "--dtype", "float16"),
        *("--sampling-backend", "pytorch", "--mem-fraction-static", "0.3", "--random-seed", "0"),
        *("--cuda-graph-max-bs-decode", "64", "--max-running-requests", "64"),
        *("--enable-metrics", "--decode-log-interval", "10"),
        # Two sizes instead of some sixty: the server starts sooner.
        *("--cuda-graph-bs-prefill", "256", "1024"),
    ),
    environment={},
)
SPECULATION = [
    *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    *("--enable-dynamic-spec", "--dynamic-spec-threshold", "16", "--dynamic-spec-dwell", "2"),
]
# Fewer slots than the requests come to need, and admission that does not think of that.
POOL = ["--max-total-tokens", "12000"]
ROOM = ["--max-total-tokens", "40000"]
ENVIRONMENT = {"SPEC_TOGGLE_CHECK": "1", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "1"}
COUNT, LENGTH = 40, 400
PROMPTS = held_out_prompts(COUNT, 29)
PAUSE_S = 0.02
TIE = 0.05  # of log probability: between it and rounding in float16 there is nothing to tell


class Servers(NamedTuple):
    toggle: Server
    reference: Server


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    pair = build_tiny_pair()
    draft = ["--speculative-draft-model-path", str(pair.draft)]
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Server:
            server = Server(name, pair.target, [*TP, *arguments], engine=GPU)
            stack.callback(server.stop)
            return server

        reference = start("reference", *ROOM)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in ENVIRONMENT.items():
                patch.setenv(name, value)
            toggle = start("toggle", *POOL, *SPECULATION, *draft)
        for server in (reference, toggle):
            server.wait_until_ready(600)
        # The first sampled round compiles its kernels, for minutes, and the server waits. Those of
        # top-k too: SGLang makes one of a greedy request that shares a batch with a sampled one.
        generate(toggle, PROMPTS[:1], [8], temperature=1.0, top_k=2)
        yield Servers(reference=reference, toggle=toggle)


@pytest.fixture(scope="module")
def expected(servers: Servers) -> list[list[int]]:
    answers = generate(servers.reference, PROMPTS, [LENGTH] * COUNT)
    return [answer["output_ids"] for answer in answers]


def check_tokens(servers: Servers, answers: Sequence[Any], expected: list[list[int]]) -> None:
    """Equal, or other from a token on that is a tie: float16 rounds by the size of the batch."""
    differing = [
        (prompt, next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b))
        for prompt, found, wanted in zip(
            PROMPTS, (answer["output_ids"] for answer in answers), expected, strict=False
        )
        if found != wanted
    ]
    assert len(differing) <= len(answers) // 5
    for prompt, at in differing:
        body = {
            "text": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": at + 1, "ignore_eos": True},
            **{"return_logprob": True, "top_logprobs_num": 2},
        }
        url = f"{servers.reference.url}/generate"
        alone = requests.post(url, json=body, timeout=60).json()
        (first, *_), (second, *_) = alone["meta_info"]["output_top_logprobs"][at]
        assert first - second < TIE, (prompt, at, first, second)


def test_load_switches_while_requests_are_retracted(
    servers: Servers, expected: list[list[int]]
) -> None:
    before = samples(servers.toggle)
    answers = generate(servers.toggle, PROMPTS, [LENGTH] * COUNT)
    check_tokens(servers, answers, expected)
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    after = samples(servers.toggle)
    series = "switches_total{mode=plain,reason=load}"
    assert after[series] > before.get(series, 0)
    check_idle(servers.toggle)


def test_forced_switches_under_load(servers: Servers, expected: list[list[int]]) -> None:
    count = 8
    pool = ThreadPoolExecutor(2)
    try:
        greedy = pool.submit(generate, servers.toggle, PROMPTS[:count], [LENGTH] * count)
        sampled = pool.submit(generate, servers.toggle, PROMPTS[:1], [LENGTH], temperature=1.0)
        alternate(servers.toggle, lambda: greedy.done() and sampled.done(), PAUSE_S)
    finally:
        pool.shutdown(wait=False)  # a server that hangs would never answer
    check_tokens(servers, greedy.result(), expected)
    assert len(sampled.result()[0]["output_ids"]) == LENGTH
    for answer in greedy.result():
        assert 0 < answer["meta_info"]["dynamic_spec_plain_tokens"] < LENGTH - 1
    check_idle(servers.toggle)


def test_both_ranks_replayed_native_graphs_and_never_differed(servers: Servers) -> None:
    log = servers.toggle.log()
    assert "tensor-parallel ranks differ" not in log and "Traceback" not in log
    assert len(re.findall(r" TP[01]\].*captured native DECODE graphs", log)) == 2
    assert "without a graph" not in log
