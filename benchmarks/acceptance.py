"""``python3 -m benchmarks.acceptance``: accept length of a trained pair, measured in SGLang itself.

The pair's held-out prompts are answered greedily, to their end or ``--new-tokens``, by a server
without the toggle that drafts a chain of three tokens (3-1-4). The head's card has the simulated
figure to compare with.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.models import PAIRS, ModelPair, resolve_pair
from benchmarks.results import provenance_of, save_json
from benchmarks.stepping import device_settings

SCHEMA = (
    "arms.static: accept_len: 1 + accepted drafts / rounds; by_step: of the rounds that came to a "
    "draft step, the share that accepted its token; output_tokens: of all requests, the first one "
    "of each comes from its prompt. A last round may accept more than its answer has room for."
)
STEPS = 3


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    try:
        models = resolve_pair(chosen.pair, chosen.draft)
    except ValueError as error:
        print(f"acceptance: error: {error}", file=sys.stderr)
        return 2
    outcomes = _serve(models, chosen)
    arm = summarise([outcome.req.spec_correct_drafts_histogram for outcome in outcomes])
    arm["requests"] = len(outcomes)
    arm["output_tokens"] = sum(len(outcome.tokens) for outcome in outcomes)
    print(f"accept length {arm['accept_len']:.3f} over {arm['rounds']} rounds")
    print(f"by step       {', '.join(f'{share:.3f}' for share in arm['by_step'])}")
    print(f"results       {_save(models, chosen, arm)}")
    return 0


def summarise(histograms: list[list[int]]) -> dict[str, Any]:
    """Of each request: how many rounds accepted 0, 1, … drafts."""
    rounds: Counter[int] = Counter()
    for histogram in histograms:
        rounds.update(dict(enumerate(histogram)))
    reached = [sum(n for hits, n in rounds.items() if hits >= s) for s in range(STEPS + 1)]
    drafts = sum(hits * n for hits, n in rounds.items())
    return {
        "accept_len": round(1 + drafts / max(1, reached[0]), 4),
        "by_step": [round(reached[s + 1] / max(1, reached[s]), 4) for s in range(STEPS)],
        "rounds": reached[0],
    }


def _serve(models: ModelPair, chosen: argparse.Namespace) -> list[Any]:
    """The outcome of every prompt, ``--batch`` requests at a time."""
    from tests.engine.harness import EngineConfig, Request, StepEngine, activate_reference_engine

    if chosen.attention == "intel_amx":
        activate_reference_engine()
    longest = max(map(len, models.prompts)) + chosen.new_tokens
    config = EngineConfig(
        "chain",
        sync=None,
        max_total_tokens=chosen.batch * (longest + 64),
        max_running_requests=chosen.batch,
        extra=tuple(device_settings(chosen.attention, chosen.batch).items()),
    )
    engine = StepEngine(config, str(models.target), str(models.draft))
    requests = [
        Request(prompt, max_new_tokens=chosen.new_tokens, sampling={"ignore_eos": False})
        for prompt in models.prompts[: chosen.prompts]
    ]
    outcomes: list[Any] = engine.run(requests)
    engine.close()
    return outcomes


def _save(models: ModelPair, chosen: argparse.Namespace, arm: dict[str, Any]) -> Path:
    provenance = provenance_of(
        "benchmarks.acceptance",
        device="cpu" if chosen.attention == "intel_amx" else "cuda",
        attention_backend=chosen.attention,
        model=models.label,
        draft=models.draft.name,
        spec={"steps": STEPS, "topk": 1, "draft_tokens": STEPS + 1},
        simulated_accept=None,
        output_len=chosen.new_tokens,
        batch=chosen.batch,
    )
    return save_json(
        chosen.out, "acceptance", provenance, f"{models.label}-3-1-4", SCHEMA, {"static": arm}
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.acceptance", description=__doc__)
    add = parser.add_argument
    add("--pair", default="reference", choices=PAIRS)
    add("--draft", type=Path, help="another head than the pair's own")
    add("--prompts", type=int, help="only the first so many held-out prompts")
    add("--new-tokens", type=int, default=320, help="longest answer")
    add("--batch", type=int, default=32, help="requests that run together")
    add("--attention", default="triton", choices=("triton", "flashinfer", "fa3", "intel_amx"))
    add("--out", type=Path, default=Path("benchmarks/results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
