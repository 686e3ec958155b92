"""Two tensor-parallel ranks, two processes over gloo: each decides for itself, and all alike.

Ranks that disagree on a mode hang in a collective. The server here also compares, before every
iteration, all that the ranks decide from (SPEC_TOGGLE_CHECK), so that a difference is an error
that says what it is; a hang would end by the limits of these tests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import pytest
import requests

from spec_toggle.demo.server import CPU, Engine, Server
from spec_toggle.endpoint import Endpoint
from spec_toggle.live_costs import INTERVAL
from spec_toggle.reference.tiny_pair import build_tiny_pair, held_out_prompts
from tests.engine.test_http import RUNNING, body, metrics, post, wait_for
from tests.engine.test_operation_http import samples

# A test that hangs fails; the start of the servers has limits of its own.
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(400, func_only=True)]

# Long drafts cost so much at a large batch that `auto` knows it before it has measured.
SPECULATION = [
    *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "7"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "8"),
    *("--enable-dynamic-spec", "--dynamic-spec-policy", "auto", "--dynamic-spec-dwell", "2"),
]
# Fewer slots than the crowd comes to need, and admission that does not think of that.
POOL = ["--max-total-tokens", "3000", "--max-running-requests", "128"]
ENVIRONMENT = {"SPEC_TOGGLE_CHECK": "1", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "1"}
TP = ["--tp-size", "2"]
PROMPTS = held_out_prompts(10, 29)
CROWD, LONGEST = 100, 120
SWITCH = "SPEC -> PLAIN|PLAIN -> SPEC"


@contextmanager
def serving(name: str, arguments: list[str], engine: Engine = CPU) -> Iterator[Server]:
    started = Server(name, build_tiny_pair().target, [*TP, *arguments], engine=engine)
    try:
        started.wait_until_ready(600)
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Greedy tokens of each prompt, on two ranks without speculation."""
    with serving("tp-reference", []) as reference:
        answers = generate(reference, PROMPTS, [LONGEST] * len(PROMPTS))
    return [answer["output_ids"] for answer in answers]


@pytest.fixture(scope="module")
def server(expected: list[list[int]]) -> Iterator[Server]:
    """After the reference: each needs the machine for itself to start."""
    draft = ["--speculative-draft-model-path", str(build_tiny_pair().draft)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with serving("tp", [*POOL, *SPECULATION, *draft]) as started:
            yield started


def generate(
    server: Server, prompts: Sequence[str], lengths: Sequence[int], **sampling: Any
) -> Any:
    """All in one call, so that they come at once."""
    bodies = [body(*job, **sampling) for job in zip(prompts, lengths, strict=True)]
    batch = {key: [each[key] for each in bodies] for key in bodies[0]}
    response = requests.post(f"{server.url}/generate", json=batch, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def alternate(server: Server, is_done: Callable[[], bool], pause_s: float = 0.25) -> None:
    """Force one mode, then the other, until ``is_done()``."""
    operator = Endpoint(server.url)
    for mode in cycle(("plain", "spec")):
        operator.steer({"force": mode, "seconds": 60})
        time.sleep(pause_s)
        if is_done():
            break
    operator.steer({"force": "none"})


def check_idle(server: Server) -> None:
    """Nothing runs; the cache flushes, which it refuses while requests hold it."""
    wait_for(lambda: metrics(server)[RUNNING] == 0, "no running request")
    post(server, "flush_cache")


def test_the_first_rank_alone_reports(server: Server, expected: list[list[int]]) -> None:
    """``samples`` fails for a series of another rank, or of more than one.

    The first test, because the log leaves out switches after ten in a minute.
    """
    operator, count = Endpoint(server.url), 4
    log_before = len(server.log())
    operator.steer({"force": "plain", "seconds": 60})
    for _ in ("plain", "spec"):
        answers = generate(server, PROMPTS[:count], [LONGEST] * count)
        assert [answer["output_ids"] for answer in answers] == expected[:count]
        operator.steer({"force": "none"})
    switches = sum(v for k, v in samples(server).items() if k.startswith("switches_total"))
    lines = [ln for ln in server.log()[log_before:].splitlines() if re.search(SWITCH, ln)]
    assert len(lines) == switches >= 2 and all(" TP0]" in line for line in lines), lines


def test_auto_switches_by_load_while_requests_are_retracted(
    server: Server, expected: list[list[int]]
) -> None:
    before, log_before = samples(server), len(server.log())
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(CROWD)]
    lengths = [20 + i % 41 for i in range(CROWD - 2)] + [LONGEST] * 2
    answers = generate(server, prompts, lengths)
    for i, (answer, length) in enumerate(zip(answers, lengths, strict=True)):
        assert answer["output_ids"] == expected[i % len(PROMPTS)][:length], i
    assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    after = samples(server)
    for mode in ("plain", "spec"):
        series = f"switches_total{{mode={mode},reason=load}}"
        assert after[series] > before[series]
    lines = [ln for ln in server.log()[log_before:].splitlines() if "SPEC -> PLAIN" in ln]
    assert any(re.search(r"gain 0\.\d+, .* tokens in .* ms against 1", line) for line in lines)
    check_idle(server)


def test_forced_switches_under_load(server: Server, expected: list[list[int]]) -> None:
    count = 4
    before = samples(server)
    with ThreadPoolExecutor(2) as pool:
        greedy = pool.submit(generate, server, PROMPTS[:count], [LONGEST] * count)
        sampled = pool.submit(generate, server, PROMPTS[:1], [LONGEST], temperature=1.0)
        alternate(server, lambda: greedy.done() and sampled.done())
    assert [answer["output_ids"] for answer in greedy.result()] == expected[:count]
    assert len(sampled.result()[0]["output_ids"]) == LONGEST
    for answer in greedy.result():
        assert 0 < answer["meta_info"]["dynamic_spec_plain_tokens"] < LONGEST - 1
    after = samples(server)
    switches = after["switches_total{mode=plain,reason=forced}"]
    assert switches > before.get("switches_total{mode=plain,reason=forced}", 0)
    check_idle(server)


def test_clients_that_disconnect_during_switches(server: Server, expected: list[list[int]]) -> None:
    url = f"{server.url}/generate"
    streams = [
        requests.post(url, json={**body(p, 1500), "stream": True}, stream=True, timeout=60)
        for p in PROMPTS[4:]
    ]
    left = iter(streams)

    def leave() -> bool:
        stream = next(left, None)
        if stream is not None:
            stream.close()
        return stream is None

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(generate, server, PROMPTS[:3], [LONGEST] * 3)
        alternate(server, leave)
        assert [answer["output_ids"] for answer in staying.result()] == expected[:3]
    check_idle(server)


def test_costs_that_the_first_rank_has_timed_reach_both(
    server: Server, expected: list[list[int]]
) -> None:
    def iterations() -> float:
        found = samples(server)
        return sum(found[f"iterations_total{{mode={mode}}}"] for mode in ("spec", "plain"))

    while iterations() <= INTERVAL:
        answers = generate(server, PROMPTS[:2], [LONGEST] * 2)
        assert [answer["output_ids"] for answer in answers] == expected[:2]


def test_nothing_went_wrong_and_nothing_is_untested(server: Server) -> None:
    log = server.log()
    assert "tensor-parallel ranks differ" not in log and "Traceback" not in log
    assert len(re.findall(r" TP[01]\] Dynamic speculation is on", log)) == 2
    assert "UNTESTED" not in log
