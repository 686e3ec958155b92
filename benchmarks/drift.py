"""``python3 -m benchmarks.drift``: how soon ``auto`` follows acceptance that changes in service.

Steps the real scheduler in this process under a constant number of requests: as each ends, the next
arrives. From one phase to the next the simulated accept length changes. The arms ``spec`` and
``plain`` hold one mode: the faster of them in a phase is what to follow.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.models import ModelPair
from benchmarks.results import save_json
from benchmarks.steady_load import Load, Prompts, Window
from benchmarks.stepped_options import add_engine_options, engine_provenance, prepare_engine
from benchmarks.stepping import SteppedServer, change_simulated_accept
from tests.engine.harness import Request, StepEngine

HELD = ("plain", "spec")
BIN_S = 0.5
WARM_UP_S = 1.0
SCHEMA = (
    "arms.<arm>.<concurrency>: its phases; accept: simulated; plain_share: of the "
    "iterations in each bin of bin_s; the rest: of the whole phase. Of auto: "
    "better: the faster of the held arms, ratio: to its output_tok_s, followed_s: from the start "
    "of the phase until most iterations of every further bin are in that mode, null: never"
)


class DriftingLoad(Load):
    """As each request ends the next arrives; from phase to phase the accept length changes."""

    def __init__(
        self,
        engine: StepEngine,
        size: int,
        prompts: Prompts,
        output_len: int,
        accepts: Sequence[float],
    ) -> None:
        """``size``: requests at a time; ``accepts``: simulated lengths, one for each phase."""

        def successor() -> Request:
            return prompts.take(1, output_len)[0]

        super().__init__(engine, prompts.take(size, output_len), successor)
        self._accepts = accepts

    def serve(self, phase_s: float) -> list[dict[str, Any]]:
        """What ``SCHEMA`` says of each phase; the first begins when all requests decode."""
        bins: list[list[Window]] = []
        self.run(self._script(phase_s, bins))
        return [
            {
                "accept": accept,
                **seen[-1].since(seen[0]).summary(),
                "bin_s": BIN_S,
                "plain_share": [
                    late.since(early).summary()["plain_share"]
                    for early, late in itertools.pairwise(seen)
                ],
            }
            for accept, seen in zip(self._accepts, bins, strict=True)
        ]

    def _script(self, phase_s: float, bins: list[list[Window]]) -> Iterator[None]:
        change_simulated_accept(self._accepts[0])
        yield from self.until_all_decode()
        for accept in self._accepts:
            change_simulated_accept(accept)
            start = time.perf_counter()
            bins.append([self.seen()])
            for end in range(1, 1 + int(phase_s / BIN_S)):
                while time.perf_counter() < start + end * BIN_S:
                    yield
                bins[-1].append(self.seen())


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    chosen.accept = chosen.accepts[0]
    models = prepare_engine(chosen)
    server = _server(models, chosen)
    prompts = Prompts(server.vocab_size, chosen.input_len)

    def serve(size: int, accepts: Sequence[float], phase_s: float) -> list[dict[str, Any]]:
        server.engine.flush()
        load = DriftingLoad(server.engine, size, prompts, chosen.output_len, accepts)
        return load.serve(phase_s)

    for arm in HELD:  # compiles kernels, and shows ``auto`` the first accept length
        server.use_policy(arm)
        serve(max(chosen.levels), chosen.accepts[:1], WARM_UP_S)
    arms: dict[str, Any] = {}
    for arm in ("auto", *HELD):
        server.use_policy(arm)
        arms[arm] = {
            str(size): serve(size, chosen.accepts, chosen.phase_s) for size in chosen.levels
        }
    server.close()
    compare(arms)
    _print_table(arms["auto"])
    provenance = engine_provenance(
        "benchmarks.drift", chosen, models, output_len=chosen.output_len, phase_s=chosen.phase_s
    )
    provenance["simulated_accept"] = chosen.accepts
    name = f"{models.label}-{chosen.spec}"
    print(f"results: {save_json(chosen.out, 'drift', provenance, name, SCHEMA, arms)}")
    return 0


def compare(arms: dict[str, Any]) -> None:
    """Add to the phases of ``auto`` what only the held arms tell."""
    for size, phases in arms["auto"].items():
        for index, phase in enumerate(phases):
            rates = {arm: arms[arm][size][index]["output_tok_s"] for arm in HELD}
            phase["better"] = max(rates, key=lambda arm: rates[arm])
            phase["ratio"] = phase["output_tok_s"] / max(rates.values())
            phase["followed_s"] = followed(phase["plain_share"], phase["better"] == "plain")


def followed(plain_share: Sequence[float | None], is_plain: bool) -> float | None:
    """Seconds until most iterations of every further bin are in the mode; None: they never are.

    ``plain_share``: None where a bin had no iteration.
    """
    right = [share is None or (share > 0.5) == is_plain for share in plain_share]
    count = len(list(itertools.takewhile(bool, reversed(right))))
    return BIN_S * (len(right) - count) if count else None


def _server(models: ModelPair, chosen: argparse.Namespace) -> SteppedServer:
    return SteppedServer(
        models,
        chosen.spec,
        chosen.attention,
        max(chosen.levels),
        chosen.input_len + chosen.output_len,
        prefill_graphs=True,
        sync="deferred",
        dynamic_spec_policy="auto",
    )


def _print_table(sizes: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("concurrency", "accept", "better", "over the better", "followed after")
    for size, phases in sizes.items():
        for phase in phases:
            late = phase["followed_s"]
            after = "never" if late is None else f"{late:.2f} s"
            table.add_row(
                size, f"{phase['accept']:g}", phase["better"], f"{phase['ratio']:.3f}", after
            )
    Console(width=100).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--levels", type=int, nargs="+", default=[32], help="concurrency")
    add("--accepts", type=float, nargs="+", default=[3.4, 1.6, 3.4], help="simulated, by phase")
    add("--phase-s", type=float, default=10.0, help="length of a phase")
    add("--output-len", type=int, default=256)
    add_engine_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
