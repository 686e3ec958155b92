"""``python3 -m benchmarks.grid``: output tokens/s over concurrency, accept length and context.

Steps the real scheduler in this process, so that one start serves the whole grid of an arm. Every
cell is a batch that arrives at once, whose prefill is timed, and that then decodes for a while
without anybody coming or going. What requests that come and go cost, and HTTP, is left out
(``benchmarks.envelope`` has it in).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.models import ModelPair
from benchmarks.results import save_json
from benchmarks.steady_load import Prompts, SteadyLoad, Window
from benchmarks.stepped_options import (
    CPU_ATTENTION,
    add_engine_options,
    arms_of,
    engine_provenance,
    prepare_engine,
)
from benchmarks.stepping import SteppedServer, change_simulated_accept

WITHOUT, STATIC = ("none", "none_again"), ("static", "static_again")
# These share an engine, the toggle's. ``spec`` and the ``plain_*`` never switch.
TOGGLE = ("auto", "threshold", "spec", "plain_deferred", "plain_off", "plain_eager")
ARMS = ("none", "static", *TOGGLE, "none_again", "static_again")
DEFAULT_ARMS = "none,static,auto,plain_deferred,plain_off,none_again"
WITH_ROUNDS = (*STATIC, "auto", "threshold", "spec")
LONG, DOCUMENTS, OWN = 1024, 8, 32
SETTLE = 32  # output tokens of a request before the window
GROWTH = 256  # room for output tokens in the largest batch, per request
# What an H200 has room for beside the 8B shape.
POOL = 640_000
ANY = "any"
SCHEMA = (
    "arms.<arm>.<context>.<accept>.<concurrency>: tokens and output_tok_s in passes times "
    "window_s; accept_len: tokens per round; plain_share: of decode iterations; switches; ratio: "
    "output_tok_s over the better of the mean of none and none_again and that of static and "
    "static_again at this accept length; prefill_s: from the arrival of all requests to "
    f"the last first token. accept {ANY!r}: the arm makes no rounds. context: prompt tokens; of "
    f"{LONG} or more all but {OWN} are one of {DOCUMENTS} documents that the prefix cache holds. "
    "auto serves adapt_s first whenever the accept length changes: benchmarks.drift measures that."
)


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    chosen.accept = chosen.accepts[0]
    if chosen.pool_tokens is None:
        chosen.pool_tokens = 0 if chosen.attention == CPU_ATTENTION else POOL
    # Admits the whole batch, although its requests may ask for more tokens than the pool has.
    os.environ["SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION"] = "16"
    models = prepare_engine(chosen)
    arms: dict[str, Any] = {}
    for arm, server in _servers(chosen.arms, models, chosen):
        arms[arm] = _measure(arm, server, chosen)
        _add_ratios(arms)
        path = _save(chosen, models, arms)  # after every arm: a run that is cut short keeps them
    _print_table(arms)
    print(f"results: {path}")
    return 0


def _servers(
    wanted: list[str], models: ModelPair, chosen: argparse.Namespace
) -> Iterator[tuple[str, SteppedServer]]:
    """Every arm with its engine; arms of the toggle that follow each other share one."""
    for kind, arms in itertools.groupby(wanted, lambda arm: "toggle" if arm in TOGGLE else arm):
        server = _server(kind, models, chosen)
        yield from ((arm, server) for arm in arms)
        server.close()


def _server(kind: str, models: ModelPair, chosen: argparse.Namespace) -> SteppedServer:
    largest = max(chosen.levels)
    own = max([context for context in chosen.contexts if context < LONG], default=OWN)
    shared = sum(DOCUMENTS * context for context in chosen.contexts if context >= LONG)
    tokens = max(own + GROWTH + shared // largest, chosen.pool_tokens // largest)
    shape = (models, "none" if kind in WITHOUT else chosen.spec, chosen.attention, largest, tokens)
    settings: dict[str, Any] = {"sync": None}
    if kind == "toggle":
        settings = {"sync": "deferred", "dynamic_spec_policy": "auto"}
    return SteppedServer(*shape, **settings)


def _measure(arm: str, server: SteppedServer, chosen: argparse.Namespace) -> dict[str, Any]:
    """The cells of one arm, by context, accept length and concurrency."""
    if arm in TOGGLE:
        _set_policy(arm, server, chosen.threshold)
    cells: dict[str, Any] = {}
    for context in chosen.contexts:
        documents = DOCUMENTS if context >= LONG else 0
        prompts = Prompts(server.vocab_size, context, documents, OWN)
        server.engine.flush()
        server.engine.run([*prompts.warm_up(), *prompts.take(1, output_len=8)])
        levels = chosen.long_levels if documents else chosen.levels
        for accept in chosen.accepts if arm in WITH_ROUNDS else (None,):
            if accept is not None:
                change_simulated_accept(accept)
            if arm == "auto":
                load = SteadyLoad(server.engine, prompts.take(levels[0]))
                load.measure(0, chosen.adapt_s)
            found = _sweep(server, prompts, levels, chosen)
            key = ANY if accept is None else f"{accept:g}"
            cells.setdefault(str(context), {})[key] = found
            rates = "  ".join(f"{n}: {cell['output_tok_s']:.0f}" for n, cell in found.items())
            print(f"{arm} context {context} accept {key}  {rates}", flush=True)
    return cells


def _sweep(
    server: SteppedServer, prompts: Prompts, levels: list[int], chosen: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """The cells of ``levels``: each the sum of its passes, which are seconds apart."""
    windows: dict[int, Window] = {}
    prefills: dict[int, list[float]] = {}
    for level in levels * chosen.passes:
        load = SteadyLoad(server.engine, prompts.take(level))
        window, prefill_s = load.measure(SETTLE, chosen.window_s)
        windows[level] = windows.get(level, Window()).plus(window)
        prefills.setdefault(level, []).append(prefill_s)
        if not prompts.has_documents:  # a full cache would be evicted in the window
            server.engine.flush()
    return {
        str(level): {**windows[level].summary(), "prefill_s": statistics.fmean(prefills[level])}
        for level in levels
    }


def _set_policy(arm: str, server: SteppedServer, threshold: int) -> None:
    policy, _, sync = arm.partition("_")
    server.use_sync(sync or "deferred", 4096)
    server.use_policy(policy, threshold)


def _add_ratios(arms: dict[str, Any]) -> None:
    """Where there is something to compare with."""
    for arm, contexts in arms.items():
        for context, accepts in contexts.items():
            for accept, levels in accepts.items():
                for level, cell in levels.items():
                    rivals = _rivals(arms, context, accept, level)
                    if arm not in WITHOUT and rivals:
                        cell["ratio"] = cell["output_tok_s"] / max(rivals)


def _rivals(arms: dict[str, Any], context: str, accept: str, level: str) -> list[float]:
    """Output tokens/s without speculation and of static speculation, as far as measured."""

    def rates(names: tuple[str, str], key: str) -> list[float]:
        found = [arms.get(arm, {}).get(context, {}).get(key, {}).get(level) for arm in names]
        return [cell["output_tok_s"] for cell in found if cell is not None]

    seen = (rates(WITHOUT, ANY), rates(STATIC, accept))
    return [statistics.fmean(values) for values in seen if values]


def _print_table(arms: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("arm", "context", "accept", "concurrency: tokens/s (over the better; plain)")
    for arm, contexts in arms.items():
        for context, accepts in contexts.items():
            for accept, levels in accepts.items():
                table.add_row(arm, context, accept, "  ".join(map(_text, levels.items())))
    Console(width=180).print(table)


def _text(item: tuple[str, dict[str, Any]]) -> str:
    level, cell = item
    ratio = f" ({cell['ratio']:.3f})" if "ratio" in cell else ""
    plain = "" if cell["plain_share"] is None else f" {100 * cell['plain_share']:.0f}%"
    return f"{level}: {cell['output_tok_s']:.0f}{ratio}{plain}"


def _save(chosen: argparse.Namespace, models: ModelPair, arms: dict[str, Any]) -> Any:
    names = ("window_s", "passes", "adapt_s", "pool_tokens")
    limits = {name: getattr(chosen, name) for name in names}
    provenance = engine_provenance("benchmarks.grid", chosen, models, **limits)
    provenance["simulated_accept"] = chosen.accepts
    shape = "-".join([models.label, chosen.spec, *_only(chosen.contexts)])
    return save_json(chosen.out, "grid", provenance, shape, SCHEMA, arms)


def _only(contexts: list[int]) -> list[str]:
    """For the name of the file: a run of one context stands beside those of others."""
    return [str(contexts[0])] if len(contexts) == 1 else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--arms", type=arms_of(ARMS), default=DEFAULT_ARMS, help=f"of {', '.join(ARMS)}")
    add("--levels", type=int, nargs="+", default=[1, 4, 16, 32, 64, 128, 256], help="concurrency")
    add("--contexts", type=int, nargs="+", default=[256, 8192 - 32], help="prompt tokens")
    add("--long-levels", type=int, nargs="+", default=[1, 4, 16, 32, 64, 128, 256])
    add("--accepts", type=float, nargs="+", default=[1.6, 2.6, 3.4], help="simulated lengths")
    add("--threshold", type=int, default=24, help="of the arm threshold")
    add("--window-s", type=float, default=1.5, help="of output that is measured, for every cell")
    add("--passes", type=int, default=1, help="windows per cell, at different times")
    add("--adapt-s", type=float, default=5.0, help="auto: to follow another accept length in")
    add("--pool-tokens", type=int, help=f"of the KV pool at least; default: {POOL}, on a CPU 0")
    add_engine_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
