"""Every place where the toggle touches SGLang, in one table: target, kind, handler, why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec_toggle import accounting, adapters, host_lengths, reserve, routes, steering_hooks
from spec_toggle.contract import SCHEDULE_BATCH, WORKER_BATCH, Where


@dataclass(frozen=True)
class Hook:
    """``kind`` is a ``HookType`` name of the host. ``parameters`` must exist on the target.

    ``where``: the releases that it is for; None: all.
    """

    target: str
    kind: str
    handler: Callable[..., Any]
    why: str
    parameters: tuple[str, ...] = ()
    where: Where | None = None


SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
EAGLE_WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
# The worker without overlap, and for draft trees, of 0.5.12.
EAGLE_WORKER_V1 = "sglang.srt.speculative.eagle_worker.EAGLEWorker"
SCHEDULE_BATCH_CLASS = "sglang.srt.managers.schedule_batch.ScheduleBatch"
COMPONENTS = "sglang.srt.managers.scheduler_components"
REPORTER = f"{COMPONENTS}.metrics_reporter.SchedulerMetricsReporter"

# Installed whenever the plugin is loaded: they only offer the flags.
FLAG_HOOKS = (
    Hook(
        f"{SERVER_ARGS}.add_cli_args",
        "AFTER",
        adapters.add_cli_args,
        "the flags must be on the stock parser",
        ("parser",),
    ),
    Hook(
        f"{SERVER_ARGS}.from_cli_args",
        "AROUND",
        adapters.from_cli_args,
        "parsed flags are not fields of ServerArgs",
        ("args",),
    ),
)

# Installed only once the toggle is asked for.
SHARED_HOOKS = (
    Hook(
        f"{SERVER_ARGS}.check_server_args",
        "AFTER",
        adapters.check_server_args,
        "runs on resolved arguments, before any process is started",
    ),
    Hook(
        "sglang.srt.arg_groups.speculative_hook._handle_eagle_family",
        "AROUND",
        adapters.keep_max_running_requests,
        "the limit of 48 is set here",
        ("server_args",),
        where=SCHEDULE_BATCH,
    ),
    Hook(
        "sglang.srt.speculative.eagle_utils.eagle_prepare_for_decode",
        "AROUND",
        reserve.prepare_for_decode,
        "reserves KV slots for a round in every iteration, which a plain step does not need",
        ("batch",),
        where=SCHEDULE_BATCH,
    ),
    Hook(
        f"{EAGLE_WORKER}.init_cuda_graphs",
        "AFTER",
        adapters.allocate_parts,
        "attention backends exist, and memory is not handed out yet",
        where=SCHEDULE_BATCH,
    ),
    Hook(
        "sglang.srt.managers.overlap_utils.FutureMap.resolve_seq_lens_cpu",
        "AROUND",
        host_lengths.resolve_seq_lens_cpu,
        "the host waits for the device here in every iteration",
        ("batch",),
        where=SCHEDULE_BATCH,
    ),
    Hook(
        f"{SCHEDULER}.__init__",
        "AFTER",
        adapters.attach_toggle,
        "workers and metrics exist after it",
    ),
    Hook(
        f"{SCHEDULER}.run_batch",
        "BEFORE",
        adapters.run_batch,
        "the decision needs the scheduler's queue, and must precede the worker's forward",
        ("batch",),
    ),
    Hook(
        f"{SCHEDULER}.on_idle",
        "BEFORE",
        adapters.on_idle,
        "an idle server speculates again at once",
    ),
    Hook(
        f"{SCHEDULER}.set_internal_state",
        "AROUND",
        steering_hooks.set_internal_state,
        "an operator's change must reach all ranks between the same iterations",
        ("recv_req",),
    ),
    Hook(
        f"{SCHEDULER}.get_internal_state",
        "AFTER",
        steering_hooks.get_internal_state,
        "what an operator sees is the scheduler's own state",
    ),
    Hook(
        f"{COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager.release_memory_occupation",
        "BEFORE",
        adapters.release_memory,
        "unmaps the draft's weights and KV, before an idle iteration has run",
        where=SCHEDULE_BATCH,
    ),
    Hook(
        f"{EAGLE_WORKER}.forward_batch_generation",
        "AROUND",
        adapters.forward_batch_generation,
        "one call per iteration, after the scheduler snapshots the batch it shares",
        ("batch", "on_publish", "grammar_barrier"),
        where=SCHEDULE_BATCH,
    ),
    Hook(
        f"{COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        "AROUND",
        accounting.resolve_tokens,
        "counts every result as a verified round",
        ("result", "batch"),
        where=SCHEDULE_BATCH,
    ),
    Hook(
        f"{REPORTER}.update_spec_metrics",
        "AROUND",
        accounting.update_spec_metrics,
        "accept length is about rounds",
        where=SCHEDULE_BATCH,
    ),
    Hook(
        f"{REPORTER}.report_decode_stats",
        "AROUND",
        accounting.report_decode_stats,
        "divides by the number of rounds in the interval",
        where=SCHEDULE_BATCH,
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "AFTER",
        accounting.request_metrics,
        "a client's accept length is about rounds",
        ("meta_info", "recv_obj", "i"),
    ),
)

# As above, where the scheduler makes a batch for the worker of each iteration.
WORKER_BATCH_HOOKS = (
    *(
        Hook(
            f"{worker}.__init__",
            "AFTER",
            adapters.allocate_parts,
            "the target's and the draft's graphs and pools exist after it",
            where=WORKER_BATCH,
        )
        for worker in (EAGLE_WORKER, EAGLE_WORKER_V1)
    ),
    Hook(
        f"{EAGLE_WORKER}.forward_batch_generation",
        "AROUND",
        adapters.forward_batch_generation,
        "one call per iteration, on a batch that is thrown away",
        ("model_worker_batch",),
        WORKER_BATCH,
    ),
    Hook(
        f"{EAGLE_WORKER_V1}.forward_batch_generation",
        "AROUND",
        adapters.forward_batch_generation,
        "one call per iteration, on the scheduler's own batch",
        ("batch",),
        WORKER_BATCH,
    ),
    Hook(
        f"{SCHEDULE_BATCH_CLASS}.prepare_for_decode",
        "AROUND",
        adapters.prepare_for_decode,
        "without overlap, KV slots of a plain step are allocated here",
        where=WORKER_BATCH,
    ),
    Hook(
        f"{SCHEDULER}.release_memory_occupation",
        "BEFORE",
        adapters.release_memory,
        "unmaps the draft's weights and KV, before an idle iteration has run",
        where=WORKER_BATCH,
    ),
    Hook(
        f"{SCHEDULER}._resolve_spec_overlap_tokens",
        "AROUND",
        accounting.resolve_tokens,
        "counts every result as a verified round",
        ("result", "batch"),
        WORKER_BATCH,
    ),
    Hook(
        f"{SCHEDULER}.process_batch_result_decode",
        "AROUND",
        accounting.process_decode,
        "without overlap, a plain step's result is an ordinary one",
        ("batch", "result"),
        WORKER_BATCH,
    ),
    Hook(
        f"{SCHEDULER}.update_spec_metrics",
        "AROUND",
        accounting.update_spec_metrics,
        "accept length is about rounds",
        where=WORKER_BATCH,
    ),
    Hook(
        f"{SCHEDULER}.report_decode_stats",
        "AROUND",
        accounting.report_decode_stats,
        "divides by the number of rounds in the interval",
        where=WORKER_BATCH,
    ),
)

TOGGLE_HOOKS = (*SHARED_HOOKS, *WORKER_BATCH_HOOKS)

# Installed with the toggle's in the process that launches an HTTP server, and only there.
HTTP_HOOKS = (
    Hook(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "BEFORE",
        routes.serve,
        "the application exists, and its middleware can still be extended",
    ),
)
