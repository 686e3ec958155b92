"""Every place where the toggle touches SGLang, in one table: target, kind, handler, why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spec_toggle import accounting, adapters, host_lengths, routes, steering_hooks


@dataclass(frozen=True)
class Hook:
    """``kind`` is a ``HookType`` name of the host. ``parameters`` must exist on the target."""

    target: str
    kind: str
    handler: Callable[..., Any]
    why: str
    parameters: tuple[str, ...] = ()


SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
EAGLE_WORKER = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
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
TOGGLE_HOOKS = (
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
    ),
    Hook(
        f"{EAGLE_WORKER}.init_cuda_graphs",
        "AFTER",
        adapters.allocate_parts,
        "attention backends exist, and memory is not handed out yet",
    ),
    Hook(
        "sglang.srt.managers.overlap_utils.FutureMap.resolve_seq_lens_cpu",
        "AROUND",
        host_lengths.resolve_seq_lens_cpu,
        "the host waits for the device here in every iteration",
        ("batch",),
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
    ),
    Hook(
        f"{EAGLE_WORKER}.forward_batch_generation",
        "AROUND",
        adapters.forward_batch_generation,
        "one call per iteration, after the scheduler snapshots the batch it shares",
        ("batch", "on_publish", "grammar_barrier"),
    ),
    Hook(
        f"{COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        "AROUND",
        accounting.resolve_tokens,
        "counts every result as a verified round",
        ("result", "batch"),
    ),
    Hook(
        f"{REPORTER}.update_spec_metrics",
        "AROUND",
        accounting.update_spec_metrics,
        "accept length is about rounds",
    ),
    Hook(
        f"{REPORTER}.report_decode_stats",
        "AROUND",
        accounting.report_decode_stats,
        "divides by the number of rounds in the interval",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "AFTER",
        accounting.request_metrics,
        "a client's accept length is about rounds",
        ("meta_info", "recv_obj", "i"),
    ),
)

# Installed with the toggle's in the process that launches an HTTP server, and only there.
HTTP_HOOKS = (
    Hook(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "BEFORE",
        routes.serve,
        "the application exists, and its middleware can still be extended",
    ),
)
