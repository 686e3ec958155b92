"""flashinfer's scratch memory is shared by rounds and plain steps: neither disturbs the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.models import resolve_models
from benchmarks.stepping import SteppedServer
from tests.engine.harness import has_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="NOT RUN: needs a CUDA GPU"),
]
REQUESTS, PROMPT, OUTPUT = 6, 700, 24  # long enough for its kernels to split the KV


def test_rounds_and_plain_steps_repeat_their_tokens(tmp_path: Path) -> None:
    """In bf16 a batch repeats its tokens only as the same kernels on the same batches do."""
    models = resolve_models("dummy-8b", None, tmp_path)
    shape = ("flashinfer", REQUESTS, PROMPT + OUTPUT)
    without = SteppedServer(models, "none", *shape)
    requests = without.random_requests(REQUESTS, PROMPT, OUTPUT)
    expected = [outcome.tokens for outcome in without.run(requests, None)]
    without.close()

    static = SteppedServer(models, "chain", *shape, sync=None)
    expected_of_rounds = [outcome.tokens for outcome in static.run(requests, None)]
    static.close()

    server = SteppedServer(models, "chain", *shape, sync="deferred")
    totals, graphs = server.engine.toggle.controller.totals, server.engine.toggle.graphs
    found: dict[str, list[list[list[int]]]] = {"plain": [], "spec": [], "both": []}
    for policy in ("plain", "spec", "both", "both", "plain", "spec"):
        script = (lambda step: step // 3 % 2 == 1) if policy == "both" else None
        if script is None:
            server.use_policy(policy)
        before = totals.switches
        found[policy].append([outcome.tokens for outcome in server.run(requests, script)])
        assert policy != "both" or totals.switches - before > 4
    assert graphs.replays > OUTPUT
    assert totals.rounds > OUTPUT
    server.close()
    assert found["plain"] == [expected, expected]
    assert found["spec"] == [expected_of_rounds, expected_of_rounds]
    assert found["both"][0] == found["both"][1]
