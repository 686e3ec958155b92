"""``python3 -m benchmarks.turnover``: requests that come and go, without HTTP.

Steps the real scheduler in this process under a constant number of requests: as each ends, the
next arrives, so that prefills stand between the decode iterations as in a server. With ``--waves``
all end together, as the requests of ``envelope`` do. What ``envelope`` finds beyond this is HTTP's
and the client's. A part of the time is profiled, which tells whether
the device does more work for a token, or waits more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.device_work import DeviceWork
from benchmarks.host_phases import HostPhases
from benchmarks.models import ModelPair
from benchmarks.results import save_json
from benchmarks.steady_load import Load, Prompts, Window
from benchmarks.stepped_options import (
    CPU_ATTENTION,
    add_engine_options,
    arms_of,
    engine_provenance,
    prepare_engine,
)
from benchmarks.stepping import SteppedServer, Tick, intervals_ms
from tests.engine.harness import Request

WITHOUT = ("none", "none_again")
TOGGLE = ("spec", "plain_off", "plain_deferred", "plain_eager")
ARMS = ("none", "static", *TOGGLE, "none_again")
DEFAULT_ARMS = "none,plain_off,plain_deferred,none_again"
SCHEMA = (
    "arms.<arm>.<concurrency>: output_tok_s of a window of window_s; decodes, prefills: iterations "
    "in it; decode_ms_p50: of decode iterations of the full batch that follow one another; "
    "host_ms: means of what the host does, by what it launches (benchmarks.host_phases); ratio: "
    "output_tok_s over the mean of none and none_again. Of the profile_s after it: busy_share: of "
    "the time in which a kernel ran; busy_us_per_token, and kernels_us_per_token: the largest, by "
    "name"
)


class Turnover(Load):
    """A constant number of requests. Unless they come in waves, the first ones are of different
    lengths, so that they end at different times."""

    def __init__(
        self,
        server: SteppedServer,
        size: int,
        prompts: Prompts,
        output_len: int,
        in_waves: bool,
        host: HostPhases,
    ) -> None:
        def successor() -> Request:
            return prompts.take(1, output_len)[0]

        lengths = [max(2, output_len * (i + 1) // size) for i in range(size)]
        if in_waves:
            lengths = [output_len] * size
        first = [prompts.take(1, length)[0] for length in lengths]
        super().__init__(server.engine, first, successor)
        self._ticks = server.ticks
        self._host = host
        self.host_ms: dict[str, dict[str, float]] = {}

    def measure(
        self, settle_s: float, window_s: float, work: DeviceWork | None, profile_s: float
    ) -> tuple[Window, list[Tick]]:
        """A window after ``settle_s``, and its iterations; ``work``, for ``profile_s``, follows."""
        self.run(self._phases(settle_s, window_s, work, profile_s))
        return self._window, self._seen_ticks

    def _phases(
        self, settle_s: float, window_s: float, work: DeviceWork | None, profile_s: float
    ) -> Iterator[None]:
        yield from self.until_all_decode()
        yield from _pause(settle_s)
        self._ticks.clear()
        self._host.clear()
        start = self.seen()
        yield from _pause(window_s)
        self._window, self._seen_ticks = self.seen().since(start), list(self._ticks)
        self.host_ms = self._host.summary_ms()
        if work is not None:
            before = self.tokens
            work.start()
            yield from _pause(profile_s)
            work.stop(self.tokens - before)


def _pause(seconds: float) -> Iterator[None]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield


def main(argv: list[str] | None = None) -> int:
    chosen = _parser().parse_args(argv)
    models = prepare_engine(chosen)
    arms: dict[str, Any] = {}
    for arm in chosen.arms:
        arms[arm] = _measure(arm, models, chosen)
        _add_ratios(arms)
        path = _save(chosen, models, arms)  # after every arm: a run that is cut short keeps them
        for level, cell in arms[arm].items():
            print(f"{arm:15} {level:>4}: {_text(cell)}", flush=True)
    print(f"results: {path}")
    return 0


def _measure(arm: str, models: ModelPair, chosen: argparse.Namespace) -> dict[str, Any]:
    is_toggle = arm in TOGGLE
    speculation = "none" if arm in WITHOUT else chosen.spec
    largest, tokens = max(chosen.levels), chosen.input_len + chosen.output_len
    shape = (speculation, chosen.attention, largest, tokens)
    server = SteppedServer(
        models, *shape, sync="deferred" if is_toggle else None, prefill_graphs=True
    )
    if is_toggle:
        policy, _, sync = arm.partition("_")
        server.use_sync(sync or "deferred", 4096)
        server.use_policy(policy)
    prompts = Prompts(server.vocab_size, chosen.input_len)
    host = HostPhases(server.engine.scheduler)
    found: dict[str, Any] = {}
    for level in chosen.levels:
        server.engine.flush()
        work = None if chosen.attention == CPU_ATTENTION else DeviceWork()
        load = Turnover(server, level, prompts, chosen.output_len, chosen.waves, host)
        window, ticks = load.measure(chosen.settle_s, chosen.window_s, work, chosen.profile_s)
        decodes = sum(tick.is_decode for tick in ticks)
        intervals = intervals_ms(ticks, level, skip=0)
        found[str(level)] = {
            "output_tok_s": window.tokens / window.seconds,
            "decodes": decodes,
            "prefills": len(ticks) - decodes,
            "decode_ms_p50": statistics.median(intervals) if intervals else None,
            "host_ms": load.host_ms,
            **({} if work is None else work.summary()),
        }
    server.close()
    return found


def _add_ratios(arms: dict[str, Any]) -> None:
    for levels in arms.values():
        for level, cell in levels.items():
            rivals = [arms[arm][level]["output_tok_s"] for arm in WITHOUT if arm in arms]
            if rivals:
                cell["ratio"] = cell["output_tok_s"] / statistics.fmean(rivals)


def _text(cell: dict[str, Any]) -> str:
    ratio = f" ({cell['ratio']:.3f})" if "ratio" in cell else ""
    work = ""
    if "busy_share" in cell:
        work = f", busy {cell['busy_share']:.3f}, {cell['busy_us_per_token']:.1f} us per token"
    return f"{cell['output_tok_s']:.0f} tokens/s{ratio}{work}"


def _save(chosen: argparse.Namespace, models: ModelPair, arms: dict[str, Any]) -> Any:
    names = ("output_len", "waves", "settle_s", "window_s", "profile_s")
    limits = {name: getattr(chosen, name) for name in names}
    provenance = engine_provenance("benchmarks.turnover", chosen, models, **limits)
    shape = f"{models.label}-{chosen.spec}{'-waves' if chosen.waves else ''}"
    return save_json(chosen.out, "turnover", provenance, shape, SCHEMA, arms)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--arms", type=arms_of(ARMS), default=DEFAULT_ARMS, help=f"of {', '.join(ARMS)}")
    add("--levels", type=int, nargs="+", default=[64, 128, 256], help="concurrency")
    add("--output-len", type=int, default=256)
    add("--waves", action="store_true", help="all requests end together")
    add("--settle-s", type=float, default=2.0, help="from the time that all requests decode")
    add("--window-s", type=float, default=4.0)
    add("--profile-s", type=float, default=0.4, help="on a GPU, after the window")
    add_engine_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
