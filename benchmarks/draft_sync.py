"""``python3 -m benchmarks.draft_sync``: what each draft sync costs while off, and gives on resume.

Steps the real scheduler in this process, so an iteration is timed without HTTP or a client:

- ``tax``: time per plain step of every draft sync against a server without speculation, at full
  batches;
- ``switch``: the longest gap between two iterations around a switch, against normal ones;
- ``resume``: accept length over the tokens after a resume, against a run that was never off (needs
  a draft that was trained: ``--pair``, or ``--model`` and ``--draft`` with ``--accept 0``);
- ``layout``: the log of ``deferred`` with raw hidden states against the draft's projection of them.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import log_layout
from benchmarks.models import ModelPair
from benchmarks.results import save_json
from benchmarks.stepped_options import add_engine_options, engine_provenance, prepare_engine
from benchmarks.stepping import SteppedServer, intervals_ms

SYNCS = ("off", "deferred-256", "deferred-1024", "deferred-4096", "eager")
SCHEMA = (
    "arms.<sync>.tax.<batch>: step_ms of plain steps of a full batch, without prefill and the "
    "first 16 steps; prefill_ms: of all prompts of the batch; ratio: mean step over that of the "
    "arms none and none_again; arms.<sync>.switch: "
    "of every switch the longest of the 3 intervals around it over the longer of the two normal "
    "(median) iterations; arms.<sync>.resume.<plain steps>: tokens per round over the tokens that "
    "follow, ratio: over the arm never_off at the same tokens."
)


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    models = prepare_engine(chosen)
    arms: dict[str, Any] = {}
    parts = chosen.parts.split(",")
    batches = [int(size) for size in chosen.batches.split(",")]
    longest = chosen.input_len + _longest_output(chosen, parts)
    largest = max(batches)
    if "tax" in parts:
        none = SteppedServer(models, "none", chosen.attention, largest, longest)
        arms["none"] = {"tax": _tax(none, batches, chosen)}
        none.close()
    server = SteppedServer(models, chosen.spec, chosen.attention, largest, longest)
    if "resume" in parts:
        arms["never_off"] = {"resume": _resume(server, "deferred", 1024, chosen, is_off=False)}
    for name in [] if parts == ["layout"] else chosen.syncs.split(","):
        kind, _, tokens = name.partition("-")
        server.use_sync(kind, int(tokens or 1024))
        arm = arms.setdefault(name, {})
        if "tax" in parts:
            arm["tax"] = _tax(server, batches, chosen)
        if "switch" in parts:
            arm["switch"] = _switch(server, chosen)
        if "resume" in parts:
            arm["resume"] = _resume(server, kind, int(tokens or 1024), chosen, is_off=True)
        print(f"measured {name}", flush=True)
    if "layout" in parts:
        arms["layout"] = _layout(server, batches)
    server.close()
    if "tax" in parts:
        again = SteppedServer(models, "none", chosen.attention, largest, longest)
        arms["none_again"] = {"tax": _tax(again, batches, chosen)}
        again.close()
    _add_ratios(arms)
    _print_table(arms)
    _save(chosen, models, arms)
    return 0


def _layout(server: SteppedServer, batches: list[int]) -> dict[str, Any]:
    server.engine.flush()
    tokens = min(4096, server.engine.config.max_total_tokens)
    found = log_layout.compare(server.engine.scheduler.model_worker, batches, tokens)
    for layout, measured in found.items():
        costs = (f"{n}: {us:.3f} us" for n, us in measured["us_per_token"].items())
        print(f"log {layout}, per token at batch {'  '.join(costs)}", flush=True)
    return found


def _longest_output(chosen: argparse.Namespace, parts: list[str]) -> int:
    """In tokens per request of the largest batch; the part switch runs smaller ones."""
    resume = max(chosen.plain_steps) + chosen.after if "resume" in parts else 0
    switch = chosen.switch_steps * chosen.switch_batch // max(map(int, chosen.batches.split(",")))
    return max(chosen.steps, resume, switch if "switch" in parts else 0)


def _tax(server: SteppedServer, batches: list[int], chosen: argparse.Namespace) -> dict[str, Any]:
    measured = {}
    for size in batches:
        requests = server.random_requests(size, chosen.input_len, chosen.steps)
        script = None if server.engine.config.sync is None else (lambda _: True)
        server.run(requests, script)
        first = next(tick.time for tick in server.ticks if tick.is_decode)
        measured[str(size)] = {
            "step_ms": _summary(intervals_ms(server.ticks, size)),
            "prefill_ms": 1e3 * (first - server.ticks[0].time),
        }
        if size in chosen.profile:
            first = chosen.steps // 2
            measured[str(size)]["kernels_us"] = server.profile(requests, script, first, 32)
    return measured


def _switch(server: SteppedServer, chosen: argparse.Namespace) -> dict[str, Any]:
    """Switches every ``period`` iterations, at a batch near the threshold of a real server."""
    size, period = chosen.switch_batch, 16
    modes: list[bool] = []

    def script(step: int) -> bool:
        modes.append(step // period % 2 == 1)
        return modes[-1]

    requests = server.random_requests(size, chosen.input_len, chosen.switch_steps)
    server.run(requests, script)
    ticks = [tick for tick in server.ticks if tick.is_decode]
    gaps = [1e3 * (after.time - before.time) for before, after in itertools.pairwise(ticks)]
    full = [i for i in range(2, len(gaps) - 1) if ticks[i + 1].size == size]
    normal = {
        mode: statistics.median(gaps[i] for i in full if modes[i - 2 : i + 1] == [mode] * 3)
        for mode in (True, False)
    }
    found: dict[str, list[float]] = {"to_plain": [], "to_spec": []}
    for i in full:
        if i > 2 * period and modes[i] != modes[i - 1]:
            name = "to_plain" if modes[i] else "to_spec"
            found[name].append(max(gaps[i - 1 : i + 2]) / max(normal.values()))
    return {
        "batch": size,
        "plain_ms": normal[True],
        "round_ms": normal[False],
        **{name: _summary(values) for name, values in found.items()},
    }


def _resume(
    server: SteppedServer, kind: str, tokens: int, chosen: argparse.Namespace, is_off: bool
) -> dict[str, Any]:
    """Tokens per round after N plain steps; ``is_off`` False: the same tokens, never off."""
    server.use_sync(kind, tokens)
    measured = {}
    for plain_steps in chosen.plain_steps:
        requests = _prompts(server, chosen, plain_steps + chosen.after)
        before: dict[str, tuple[int, int]] = {}

        def watch(
            _: int, plain_steps: int = plain_steps, before: dict[str, tuple[int, int]] = before
        ) -> None:
            for req in server.engine.scheduler.running_batch.reqs:
                if len(req.output_ids) > plain_steps:
                    before.setdefault(req.rid, (req.spec_num_correct_drafts, req.spec_verify_ct))

        server.engine.on_step = watch

        def script(step: int, plain_steps: int = plain_steps) -> bool:
            return is_off and step < plain_steps

        outcomes = server.run(requests, script)
        server.engine.on_step = None
        drafts = sum(o.req.spec_num_correct_drafts - before[o.req.rid][0] for o in outcomes)
        rounds = sum(o.req.spec_verify_ct - before[o.req.rid][1] for o in outcomes)
        measured[str(plain_steps)] = {"accept_len": 1 + drafts / rounds, "rounds": rounds}
    return measured


def _prompts(server: SteppedServer, chosen: argparse.Namespace, output_len: int) -> list[Any]:
    from tests.engine.harness import Request

    if server.prompts:
        prompts = server.prompts[: chosen.resume_batch]
        return [Request(prompt, 0, output_len) for prompt in prompts]
    if chosen.prompts is None:
        return server.random_requests(chosen.resume_batch, chosen.input_len, output_len)
    tokenizer = server.engine.scheduler.tokenizer
    lines = chosen.prompts.read_text().splitlines()[: chosen.resume_batch]
    return [Request(tokenizer.encode(line), 0, output_len) for line in lines]


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "mean": statistics.fmean(ordered),
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "count": len(ordered),
    }


def _add_ratios(arms: dict[str, Any]) -> None:
    for arm in arms.values():
        for size, measured in arm.get("tax", {}).items():
            rivals = [arms[n]["tax"][size]["step_ms"]["mean"] for n in ("none", "none_again")]
            measured["ratio"] = measured["step_ms"]["mean"] / statistics.fmean(rivals)
        for steps, measured in arm.get("resume", {}).items():
            never = arms["never_off"]["resume"][steps]["accept_len"]
            measured["ratio"] = measured["accept_len"] / never


def _print_table(arms: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("sync", "plain step / no speculation", "switch p50, p99", "accept / never off")
    for name, arm in arms.items():
        if name == "layout":
            continue
        tax = (f"{size}: {found['ratio']:.3f}" for size, found in arm.get("tax", {}).items())
        gaps = (
            f"{way}: {arm['switch'][way]['p50']:.2f}, {arm['switch'][way]['p99']:.2f}"
            for way in ("to_plain", "to_spec")
            if "switch" in arm
        )
        accept = (
            f"{steps}: {found['ratio']:.3f}" for steps, found in arm.get("resume", {}).items()
        )
        table.add_row(name, *("  ".join(column) for column in (tax, gaps, accept)))
    Console(width=140).print(table)


def _save(chosen: argparse.Namespace, models: ModelPair, arms: dict[str, Any]) -> None:
    provenance = engine_provenance("benchmarks.draft_sync", chosen, models)
    schema = f"{SCHEMA} {log_layout.SCHEMA}" if "layout" in arms else SCHEMA
    shape = f"{models.label}-{chosen.spec}" + ("-layout" if set(arms) == {"layout"} else "")
    path = save_json(chosen.out, "draft-sync", provenance, shape, schema, arms)
    print(f"results: {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--parts", default="tax,switch", help="of tax, switch, resume, layout")
    add("--syncs", default=",".join(SYNCS), help="NAME or deferred-TOKENS")
    add("--batches", default="64,128,256")
    add("--profile", type=int, nargs="*", default=[], metavar="BATCH", help="kernels at BATCH")
    add("--steps", type=int, default=200, help="output tokens of the part tax")
    add("--switch-steps", type=int, default=2000, help="output tokens of the part switch")
    add("--switch-batch", type=int, default=24)
    add("--resume-batch", type=int, default=16)
    add("--plain-steps", type=int, nargs="+", default=[8, 64, 512])
    add("--after", type=int, default=64, help="output tokens after a resume")
    add("--prompts", type=Path, help="one prompt per line, for the part resume")
    add_engine_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
