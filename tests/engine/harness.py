"""The real SGLang scheduler, stepped in the test process: deterministic, one engine at a time."""

from __future__ import annotations

import gc
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_toggle.demo.server import free_port
from spec_toggle.policy import Decision, Mode
from tests.engine import interpreted
from tests.engine.host import draft_runner_of, has_worker_batch, make_scheduler, run_event_loop

Script = Callable[[int], bool]  # decode iteration -> whether it is PLAIN

SPECULATION = {
    "none": {},
    "chain": {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
    "tree": {"num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 8},
}


# fp32 on either device, so that greedy tokens are exact. The GPU suite can name its attention.
DEVICES = {
    "cpu": {
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "intel_amx",
        "sampling_backend": "pytorch",
    },
    "cuda": {
        "device": "cuda",
        "dtype": "float16",
        "attention_backend": os.environ.get("SPEC_TOGGLE_TEST_ATTENTION", "triton"),
        "sampling_backend": "pytorch",
        "cuda_graph_max_bs_decode": 16,
        "mem_fraction_static": 0.3,
    },
}


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@dataclass(frozen=True)
class EngineConfig:
    """One server: its speculation, schedule and pool. ``sync``: None runs without the toggle."""

    speculation: str = "chain"
    overlap: bool = True
    page_size: int = 1
    sync: str | None = "deferred"
    max_total_tokens: int = 8192
    max_running_requests: int | None = 16
    chunked_prefill_size: int = 2048
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass
class Request:
    """A prompt, when it arrives (by the clock of the run), and how it is sampled."""

    prompt: Sequence[int]
    arrival: float = 0
    max_new_tokens: int = 30
    sampling: dict[str, Any] = field(default_factory=dict)
    logprob: bool = False
    top_logprobs: int = 0
    abort_at: int | None = None


@dataclass
class Outcome:
    """What one request got, read from the scheduler's own request object."""

    tokens: list[int]
    req: Any

    @property
    def accept_length(self) -> float:
        """Tokens per round, over rounds only."""
        return 1 + self.req.spec_num_correct_drafts / max(1, self.req.spec_verify_ct)


class ScriptedPolicy:
    """Forces the mode of each decode iteration."""

    boundary = None
    # Which of its forecasts about the iteration after a prefill are wrong; 0: none.
    wrong_every = 0

    def __init__(self, is_plain: Script) -> None:
        self._is_plain = is_plain
        self.step = 0
        self._forecasts = 0

    def decide(self, sample: Any) -> Decision:
        if sample.batch_size == 0:
            return Decision(Mode.SPEC, "idle")
        plain = self._is_plain(self.step)
        self.step += 1
        return Decision(Mode.PLAIN if plain else Mode.SPEC, "script")

    def expects_plain(self, sample: Any) -> bool:
        self._forecasts += 1
        is_wrong = self.wrong_every and self._forecasts % self.wrong_every == 0
        return self._is_plain(self.step) != bool(is_wrong)

    def configure(self, config: Any) -> None: ...


class StepEngine:
    """Builds a scheduler for ``config`` and runs lists of requests through its own event loop."""

    def __init__(self, config: EngineConfig, target: str, draft: str) -> None:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        if has_worker_batch() and not has_gpu():
            interpreted.install()
        self.config = config
        self.scheduler = make_scheduler(self._server_args(config, target, draft))
        self.initial_free = self.free_tokens()
        self.on_step: Callable[[int], None] | None = None
        self._count = 0

    def close(self) -> None:
        """Drop the process groups and the device memory, so that this process can build another."""
        from sglang.srt.distributed.parallel_state import (
            destroy_distributed_environment,
            destroy_model_parallel,
        )

        destroy_model_parallel()
        destroy_distributed_environment()
        _release_device_memory(self.scheduler)
        del self.scheduler
        gc.collect()

    @staticmethod
    def _server_args(config: EngineConfig, target: str, draft: str) -> Any:
        from sglang.srt.entrypoints.engine import Engine

        values: dict[str, Any] = {
            "model_path": target,
            **_device(),
            "grammar_backend": "xgrammar",
            "disable_overlap_schedule": not config.overlap,
            "page_size": config.page_size,
            "max_total_tokens": config.max_total_tokens,
            "max_running_requests": config.max_running_requests,
            "chunked_prefill_size": config.chunked_prefill_size,
            "random_seed": 0,
            "log_level": "warning",
            "decode_log_interval": 7,
            # SGLang draws one from ``random``, which the seed makes the same in parallel workers.
            "nccl_port": free_port(),
            # An engine of tests waits for its next one while another process works.
            "soft_watchdog_timeout": 36_000,
            **dict(config.extra),
        }
        if config.speculation != "none":
            values["speculative_algorithm"] = "EAGLE3"
            values["speculative_draft_model_path"] = draft
            for name, value in SPECULATION[config.speculation].items():
                values[f"speculative_{name}"] = value
            if config.sync is not None:
                values.update(enable_dynamic_spec=True, dynamic_spec_draft_sync=config.sync)
        return Engine.server_args_class(**values)

    @property
    def toggle(self) -> Any:
        return self.scheduler.model_worker._dynamic_spec

    def free_tokens(self) -> int:
        """Free plus evictable KV slots: all of the pool when the engine is idle."""
        scheduler = self.scheduler
        return int(
            scheduler.token_to_kv_pool_allocator.available_size()
            + scheduler.tree_cache.evictable_size()
        )

    def run(
        self,
        requests: Sequence[Request],
        script: Script | None = None,
        clock: Callable[[int], float] | None = None,
    ) -> list[Outcome]:
        """Serve ``requests`` to completion with the modes of ``script``, then drain.

        ``clock``: loop iteration to the time that arrivals are given in; None: iterations.
        """
        scheduler = self.scheduler
        if script is not None:
            self.toggle.controller.policy = ScriptedPolicy(script)
        reqs: list[Any] = [None] * len(requests)
        waiting = list(range(len(requests)))
        iteration = 0
        idle = 0

        def ingest(*_: Any, **__: Any) -> list[Any]:
            nonlocal iteration, idle
            now = iteration if clock is None else clock(iteration)
            for index in [i for i in waiting if requests[i].arrival <= now]:
                waiting.remove(index)
                reqs[index] = self.submit(requests[index])
            for index, request in enumerate(requests):
                if request.abort_at == iteration and reqs[index] is not None:
                    self.abort(reqs[index].rid)
            if self.on_step is not None:
                self.on_step(iteration)
            iteration += 1
            done = not waiting and all(req is not None and req.finished() for req in reqs)
            idle = idle + 1 if done else 0
            if idle > 3:  # overlap processes the last results one iteration late
                scheduler.gracefully_exit = True
            assert clock or iteration < 20_000, "the engine does not finish"
            return []

        run_event_loop(scheduler, ingest)
        return [Outcome(list(req.output_ids_through_stop), req) for req in reqs]

    def submit(self, request: Request) -> Any:
        """Queue ``request``; the scheduler's own object for it."""
        scheduler, tokenized = self.scheduler, self._tokenized(request)
        scheduler.process_input_requests([tokenized])
        # A request with a grammar waits for its compilation in a queue of its own.
        queues = (*scheduler.grammar_manager.grammar_queue, *scheduler.waiting_queue)
        return next(req for req in queues if req.rid == tokenized.rid)

    def abort(self, rid: str) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        self.scheduler.abort_request(AbortReq(rid=rid))

    def abort_all(self) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        self.scheduler.abort_request(AbortReq(abort_all=True))

    def flush(self) -> None:
        assert self.scheduler.flush_cache()

    def _tokenized(self, request: Request) -> Any:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        self._count += 1
        params = SamplingParams(
            max_new_tokens=request.max_new_tokens,
            **{"temperature": 0, "ignore_eos": True, **request.sampling},
        )
        params.normalize(self.scheduler.tokenizer)
        return TokenizedGenerateReqInput(
            rid=f"request-{self._count}",
            input_text="",
            input_ids=list(request.prompt) if has_worker_batch() else array("q", request.prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=request.logprob,
            logprob_start_len=-1,
            top_logprobs_num=request.top_logprobs,
            token_ids_logprob=None,
            stream=False,
        )


def _release_device_memory(scheduler: Any) -> None:
    """Weights and KV. Threads of the scheduler's hold it for as long as the process lives."""
    import torch

    workers = [scheduler.tp_worker.model_runner]
    if scheduler.draft_worker is not None:
        workers.append(draft_runner_of(scheduler.model_worker))
    for runner in workers:
        pool = runner.token_to_kv_pool
        for tensor in (*runner.model.parameters(), *pool.k_buffer, *pool.v_buffer):
            if tensor.is_cuda:
                tensor.untyped_storage().resize_(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _device() -> dict[str, Any]:
    values = dict(DEVICES["cuda" if has_gpu() else "cpu"])
    if has_worker_batch():
        if "cuda_graph_max_bs_decode" in values:
            values["cuda_graph_max_bs"] = values.pop("cuda_graph_max_bs_decode")
            # Compiled by Dynamo, which is off here: prompts would only be padded.
            values["disable_piecewise_cuda_graph"] = True
        else:
            values.update(attention_backend="triton", disable_cuda_graph=True)  # interpreted
    return values


def activate_reference_engine() -> None:
    """Before SGLang is imported; on a machine with a GPU, leave the real engine alone.

    One thread: the tensors are too small to share between cores.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["SPEC_TOGGLE_CHECK"] = "1"
    os.environ["SGLANG_IS_IN_CI"] = "true"  # its own assertions on relayed tokens and lengths
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling them would take most of the run
    import torch

    from spec_toggle.reference.launch import activate

    torch.set_num_threads(1)
    if has_gpu():
        return
    activate()
    if has_worker_batch():
        interpreted.activate()
