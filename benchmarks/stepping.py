"""The real scheduler stepped in this process, a clock on its iterations: no HTTP, no client."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.arms import PREFILL_SIZES, graph_limit
from benchmarks.models import ModelPair
from benchmarks.trace import Served
from tests.engine.harness import EngineConfig, Request, ScriptedPolicy, StepEngine

Script = Callable[[int], bool]


class Tick(NamedTuple):
    """When an iteration was handed to the worker (s), whether it decodes, and its batch size."""

    time: float
    is_decode: bool
    size: int


class SteppedServer:
    """One engine on a device, reused for several draft syncs."""

    def __init__(
        self,
        models: ModelPair,
        speculation: str,
        attention: str,
        largest: int,
        tokens: int,
        sync: str | None = "off",
        prefill_graphs: bool = False,
        **settings: Any,
    ) -> None:
        """``largest``: batch size; ``tokens``: longest request, prompt and output.

        ``sync``: of the toggle at launch, None without it; ``settings``: more of the server's.
        """
        is_dummy = models.label.startswith("dummy-")
        extra: dict[str, Any] = {"chunked_prefill_size": 8192}
        if is_dummy:
            extra.update(load_format="dummy", skip_tokenizer_init=True, grammar_backend="none")
        extra.update(device_settings(attention, largest, prefill_graphs))
        extra.update(settings)
        config = EngineConfig(
            speculation,
            sync=None if speculation == "none" else sync,
            max_total_tokens=largest * (tokens + 64),
            max_running_requests=largest,
            extra=tuple(extra.items()),
        )
        self.engine = StepEngine(config, str(models.target), str(models.draft))
        self.vocab_size = models.vocab_size
        self.prompts = models.prompts
        self.ticks: list[Tick] = []
        if config.sync is not None:
            self.launched_policy = self.engine.toggle.controller.policy
        self._clock_iterations()

    def close(self) -> None:
        self.engine.close()

    def use_sync(self, kind: str, sync_tokens: int) -> None:
        """Replace the draft sync; the engine must be idle."""
        from spec_toggle.config import DynamicSpecConfig
        from spec_toggle.draft_sync import make_draft_sync
        from spec_toggle.worker import DynamicSpecWorker

        before = self.engine.toggle
        worker = self.engine.scheduler.model_worker
        sync = make_draft_sync(DynamicSpecConfig(draft_sync=kind, sync_tokens=sync_tokens), worker)
        toggle = DynamicSpecWorker(worker, before.controller, sync, before.graphs)
        for name in ("host_lengths", "queue_length", "load_after"):
            setattr(toggle, name, getattr(before, name))
        worker._dynamic_spec = worker.req_to_token_pool._dynamic_spec = toggle

    def use_policy(self, name: str, threshold: int = 0) -> None:
        """``auto``, as launched; ``threshold``; or held in ``spec`` or ``plain``."""
        from spec_toggle.config import DynamicSpecConfig
        from spec_toggle.controller import make_policy

        controller = self.engine.toggle.controller
        if name == "auto":
            controller.policy = self.launched_policy
        elif name == "threshold":
            controller.policy = make_policy(DynamicSpecConfig(threshold=threshold), None)
        else:
            controller.policy = ScriptedPolicy(lambda _: name == "plain")

    def run(self, requests: Sequence[Request], script: Script | None) -> list[Any]:
        """Serve from an empty prefix cache; ``ticks`` are those of this run."""
        self.engine.flush()
        self.ticks.clear()
        return self.engine.run(requests, script)

    def serve(
        self, requests: Sequence[Request], script: Script | None, clock: Callable[[int], float]
    ) -> list[Served]:
        """Like ``run``, with arrivals in seconds of ``clock`` and a time for every result."""
        scheduler = self.engine.scheduler
        original = scheduler.process_batch_result
        events: dict[str, list[tuple[float, int]]] = {}

        def process(batch: Any, *positional: Any, **named: Any) -> Any:
            done = original(batch, *positional, **named)
            now = clock(0)
            for req in batch.reqs:
                seen = events.setdefault(req.rid, [])
                # A client does not get what a round gives past the last token.
                tokens = min(len(req.output_ids), req.sampling_params.max_new_tokens)
                if tokens > (seen[-1][1] if seen else 0):
                    seen.append((now, tokens))
            return done

        scheduler.process_batch_result = process
        try:
            self.engine.flush()
            outcomes = self.engine.run(requests, script, clock)
        finally:
            scheduler.process_batch_result = original
        return [
            Served(request.arrival, events[outcome.req.rid])
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def profile(
        self, requests: Sequence[Request], script: Script | None, first: int, count: int
    ) -> dict[str, float]:
        """Device time of each kernel in iterations [first, first + count), us per iteration."""
        from torch.profiler import ProfilerActivity, profile

        profiler = profile(activities=[ProfilerActivity.CUDA])

        def on_step(iteration: int) -> None:
            if iteration == first:
                profiler.start()
            if iteration == first + count:
                profiler.stop()

        self.engine.on_step = on_step
        self.run(requests, script)
        self.engine.on_step = None
        times = {e.key: e.device_time_total / count for e in profiler.key_averages()}
        return dict(sorted(times.items(), key=lambda item: -item[1])[:60])

    def random_requests(self, count: int, input_len: int, output_len: int) -> list[Request]:
        rng = random.Random(count)
        return [
            Request([rng.randrange(self.vocab_size) for _ in range(input_len)], 0, output_len)
            for _ in range(count)
        ]

    def _clock_iterations(self) -> None:
        scheduler = self.engine.scheduler
        original = scheduler.run_batch

        def run_batch(batch: Any, *positional: Any, **named: Any) -> Any:
            tick = Tick(time.perf_counter(), batch.forward_mode.is_decode(), len(batch.reqs))
            self.ticks.append(tick)
            return original(batch, *positional, **named)

        scheduler.run_batch = run_batch


def intervals_ms(ticks: Sequence[Tick], size: int, skip: int = 16) -> list[float]:
    """Durations of decode iterations of the full batch, without the first ``skip`` of them."""
    full = [tick.is_decode and tick.size == size for tick in ticks]
    pairs = [i for i in range(len(ticks) - 1) if full[i] and full[i + 1]]
    return [1e3 * (ticks[i + 1].time - ticks[i].time) for i in pairs[skip:]]


def simulate_accept(length: float) -> None:
    """Fix the accept length of rounds (0: the draft's own). SGLang reads this when imported."""
    if length > 0:
        os.environ.update(
            SGLANG_SIMULATE_ACC_LEN=str(length),
            SGLANG_SIMULATE_ACC_METHOD="match-expected",
            SGLANG_SIMULATE_ACC_TOKEN_MODE="fixed",
        )


class AcceptLengths:
    """Stands in for SGLang's draws: floors and ceilings in turn, with ``mean`` at any time.

    SGLang draws one per round for the whole batch. In a window of 40 rounds their mean is off by
    3 % (one sigma), which is more than what the arms are compared for.
    """

    def __init__(self, mean: float) -> None:
        self._mean = mean
        self._owed = 0.5

    def __call__(self, mean: float, method: str, longest: int) -> int:
        del mean, method
        self._owed += min(self._mean, longest)
        length = int(self._owed)
        self._owed -= length
        return length


def change_simulated_accept(mean: float) -> None:
    """Another accept length for the rounds to come, of an engine that simulates one."""
    from sglang.srt.speculative import spec_utils

    spec_utils.SIMULATE_ACC_LEN = mean
    if hasattr(spec_utils, "sample_simulated_acc_len"):  # older releases only draw
        spec_utils.sample_simulated_acc_len = AcceptLengths(mean)


def device_settings(attention: str, largest: int, prefill_graphs: bool = False) -> dict[str, Any]:
    """Settings of an engine with graphs up to the batch ``largest``; the CPU engine needs none."""
    if attention == "intel_amx":
        return {}
    limit = graph_limit()
    prefill: dict[str, Any] = {"cuda_graph_backend_prefill": "disabled"}
    if limit == "cuda_graph_max_bs":  # SGLang 0.5.12
        prefill = {"disable_piecewise_cuda_graph": True}
    elif prefill_graphs:
        prefill = {"cuda_graph_bs_prefill": list(PREFILL_SIZES)}
    return {
        "dtype": "bfloat16",
        "attention_backend": attention,
        limit: largest,
        **prefill,
        "mem_fraction_static": 0.8,
    }
