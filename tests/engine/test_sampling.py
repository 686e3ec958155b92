"""Sampling at a temperature above zero, on the CPU and on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from spec_toggle.reference.tiny_text import held_out_prompts
from tests.engine.engines import Engines
from tests.engine.harness import EngineConfig, Request


def test_plain_steps_sample_from_the_distribution_without_speculation(
    engines: Engines, encode: Callable[[str], list[int]]
) -> None:
    """The second token of many samples of one prompt: plain steps against no speculation."""
    prompt = encode(held_out_prompts(1, seed=71)[0])
    sampling = {"temperature": 2.5}
    requests = [Request(prompt, max_new_tokens=2, sampling=sampling) for _ in range(600)]
    none = engines.get(EngineConfig("none", sync=None)).run(requests)
    plain = engines.get(EngineConfig("chain", sync="off")).run(requests, lambda _: True)
    counts = [Counter(o.tokens[1] for o in outcomes) for outcomes in (none, plain)]
    distance = sum(abs(counts[0][t] - counts[1][t]) for t in set().union(*counts)) / 1200
    assert len(counts[0]) > 5, "the temperature was too low to sample"
    # Two samples of 600 from one distribution over a few dozen tokens differ by about 0.1.
    assert distance < 0.25
