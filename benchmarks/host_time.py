"""``python3 -m benchmarks.host_time``: what a decode iteration costs the host.

The scheduler runs as it is, but its decode forwards return at once what they returned the first
time, so that what is left of an iteration is host work: preparing the batch, the launch of
everything but the model, sampling, reading the result. A GPU hides that much as long as its own
time is longer; on a slow host, or with several GPUs to a model, it does not.

Runs on the CPU engine, where small tensor operations stand for launches. Only ratios mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.models import ModelPair
from benchmarks.results import save_json
from benchmarks.steady_load import Prompts
from benchmarks.stepped_options import (
    CPU_ATTENTION,
    add_engine_options,
    arms_of,
    engine_provenance,
    prepare_engine,
)
from benchmarks.stepping import SteppedServer, intervals_ms

ARMS = ("none", "plain_off", "plain_deferred", "none_again")
PROMPT = 32
SCHEMA = (
    "arms.<arm>.<batch>: host_us, the median time of a decode iteration whose forward is left out; "
    "ratio: over the mean of none and none_again"
)


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    models = prepare_engine(chosen)
    # The tests' own assertions, and SGLang's, cost time in every iteration.
    os.environ.update(SPEC_TOGGLE_CHECK="0", SGLANG_IS_IN_CI="false")
    arms = {arm: _measure(arm, models, chosen) for arm in chosen.arms}
    _add_ratios(arms)
    for arm, batches in arms.items():
        text = "  ".join(f"{n}: {_text(found)}" for n, found in batches.items())
        print(f"{arm:15} {text}")
    provenance = engine_provenance(
        "benchmarks.host_time", chosen, models, iterations=chosen.iterations
    )
    shape = f"{models.label}-{chosen.spec}"
    path = save_json(chosen.out, "host_time", provenance, shape, SCHEMA, arms)
    print(f"results: {path}")
    return 0


def _measure(arm: str, models: ModelPair, chosen: argparse.Namespace) -> dict[str, Any]:
    is_plain = arm.startswith("plain_")
    tokens = PROMPT + chosen.iterations + 64
    shape = ("chain" if is_plain else "none", chosen.attention, max(chosen.batches), tokens)
    server = SteppedServer(models, *shape, sync="deferred" if is_plain else None)
    if is_plain:
        server.use_sync(arm.removeprefix("plain_"), 4096)
        server.use_policy("plain")
    prompts = Prompts(server.vocab_size, PROMPT)
    found: dict[str, Any] = {}
    with forwards_left_out():
        for batch in chosen.batches:
            requests = prompts.take(batch, output_len=chosen.iterations + 32)
            server.run(requests, None)
            found[str(batch)] = {
                "host_us": 1e3 * statistics.median(intervals_ms(server.ticks, batch))
            }
    server.close()
    return found


@contextlib.contextmanager
def forwards_left_out() -> Iterator[None]:
    """Decode forwards return the result of the first one of their size."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    original, results = ModelRunner.forward, {}

    def forward(runner: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not inputs.forward_mode.is_decode():
            return original(runner, inputs, *args, **kwargs)
        key = id(runner), inputs.batch_size
        if key not in results:
            results[key] = original(runner, inputs, *args, **kwargs)
        # Both are written to by what follows a forward.
        result = copy.copy(results[key])
        result.logits_output = copy.copy(result.logits_output)
        return result

    ModelRunner.forward = forward
    try:
        yield
    finally:
        ModelRunner.forward = original


def _add_ratios(arms: dict[str, Any]) -> None:
    for batches in arms.values():
        for batch, cell in batches.items():
            rivals = [arms[arm][batch]["host_us"] for arm in ("none", "none_again") if arm in arms]
            if rivals:
                cell["ratio"] = cell["host_us"] / statistics.fmean(rivals)


def _text(cell: dict[str, float]) -> str:
    ratio = f" ({cell['ratio']:.2f})" if "ratio" in cell else ""
    return f"{cell['host_us']:.0f} us{ratio}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--arms", type=arms_of(ARMS), default=",".join(ARMS), help=f"of {', '.join(ARMS)}")
    add("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    add("--iterations", type=int, default=400, help="of each batch")
    add_engine_options(parser)
    parser.set_defaults(attention=CPU_ATTENTION, model="dummy-tiny")
    return parser


if __name__ == "__main__":
    sys.exit(main())
