"""Setting up the policy ``auto`` on a scheduler: its prior and its profile."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

from spec_toggle import __version__, profile_store
from spec_toggle.acceptance import AcceptEstimate
from spec_toggle.compat.launch import older_release, resolved_settings
from spec_toggle.config import DynamicSpecConfig
from spec_toggle.cost import CostTable, prior_table
from spec_toggle.live_costs import IterationTimer, LiveCosts, Observations
from spec_toggle.profile_plan import METHOD
from spec_toggle.ranks import share

logger = logging.getLogger(__name__)

# Server settings that decode times depend on. By name, because others hold secrets or ports.
SETTINGS = (
    *("dtype", "quantization", "kv_cache_dtype", "load_format", "revision", "context_length"),
    *("json_model_override_args", "tp_size", "ep_size", "page_size", "enable_fp32_lm_head"),
    *("attention_backend", "decode_attention_backend", "prefill_attention_backend"),
    *(
        "sampling_backend",
        "moe_runner_backend",
        "moe_a2a_backend",
        "triton_attention_num_kv_splits",
    ),
    *("fp8_gemm_runner_backend", "fp4_gemm_runner_backend", "bf16_gemm_backend"),
    *("cuda_graph_config", "disable_cuda_graph_padding", "disable_overlap_schedule"),
    *("enable_torch_compile", "torch_compile_max_bs", "enable_deterministic_inference"),
    *("disable_custom_all_reduce", "enable_flashinfer_allreduce_fusion", "enable_nccl_nvls"),
    *("enable_symm_mem", "enable_torch_symm_mem", "enable_mscclpp"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "speculative_attention_mode", "speculative_token_map"),
    *("speculative_draft_attention_backend", "speculative_draft_model_quantization"),
    *("speculative_draft_kv_cache_dtype", "speculative_draft_window_size"),
    *("speculative_moe_runner_backend", "speculative_moe_a2a_backend"),
    "speculative_draft_model_revision",
)


def make_observations(scheduler: Any) -> Observations:
    """An assumed table and accept length, to be replaced by what is measured."""
    worker = scheduler.model_worker
    steps = int(worker.speculative_num_steps)
    table = prior_table(
        steps, int(worker.speculative_num_draft_tokens), int(scheduler.max_running_requests)
    )
    is_first = scheduler.tp_group.rank == scheduler.tp_group.ranks[0]
    costs = LiveCosts(
        table, IterationTimer() if is_first else None, functools.partial(share, scheduler)
    )
    return Observations(costs, AcceptEstimate(prior=1 + steps / 2), max_accept=1.0 + steps)


def profile(scheduler: Any, toggle: Any, config: DynamicSpecConfig) -> None:
    """Replace the assumed costs by measured ones, from disk or from iterations timed now.

    Raises RuntimeError, with the way around it, if the iterations cannot be run.
    """
    reason = _why_no_profile(scheduler, config)
    if reason:
        logger.info("Dynamic speculation: no profile (%s); costs are learnt in service.", reason)
        return
    started = time.perf_counter()
    try:
        table, origin = _measured_table(scheduler, toggle, config)
    except Exception as error:
        raise RuntimeError(
            f"--dynamic-spec-policy auto: timing iterations at start failed ({error}). "
            "Add --dynamic-spec-skip-profile to learn what they cost in service."
        ) from error
    toggle.controller.observations.costs.table = table
    logger.info("Dynamic speculation: profile %s, %.1f s.", origin, time.perf_counter() - started)


def _why_no_profile(scheduler: Any, config: DynamicSpecConfig) -> str:
    if config.skip_profile:
        return "--dynamic-spec-skip-profile"
    if not scheduler.model_worker.device.startswith("cuda"):
        return "no GPU"
    if release := older_release():
        return f"SGLang {release}"
    if scheduler.server_args.enable_unified_memory:
        # Its slots have no memory behind them until a request takes them.
        return "--enable-unified-memory"
    return ""


def _measured_table(
    scheduler: Any, toggle: Any, config: DynamicSpecConfig
) -> tuple[CostTable, str]:
    """The table, equal on all ranks, and where it came from."""
    from spec_toggle.profiling import Profiler

    profiler = Profiler(scheduler, toggle, functools.partial(share, scheduler))
    axes = profiler.axes()
    key = profile_key(scheduler, config, axes)
    path = profile_store.profile_path(key)
    # The first rank's disk alone decides: all ranks must run the same iterations.
    (saved,) = share(scheduler, [profile_store.load(key)])
    if saved is not None and profiler.confirms(saved):
        return saved, f"read from {path}"
    (table,) = share(scheduler, [profiler.measure(axes)])
    if toggle.controller.observations.costs.is_source:
        profile_store.save(key, table)
    return table, f"measured, {path}"


def profile_key(scheduler: Any, config: DynamicSpecConfig, axes: Any) -> dict[str, Any]:
    """Everything that the times depend on, by name."""
    import torch
    from sglang.version import __version__ as sglang_version

    settings = resolved_settings(scheduler.server_args)
    worker = scheduler.model_worker
    draft = worker.draft_worker.draft_runner.model_config
    is_gpu = worker.device.startswith("cuda")
    return {
        "spec_toggle": __version__,
        "method": METHOD,
        "sglang": sglang_version,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if is_gpu else "cpu",
        "model": scheduler.model_config.model_path,
        "model_config": profile_store.digest(scheduler.model_config.hf_config.to_dict()),
        "draft": draft.model_path,
        "draft_config": profile_store.digest(draft.hf_config.to_dict()),
        "draft_sync": config.draft_sync,
        "native_graphs": _graph_sizes(worker),
        "batch_sizes": list(axes.batch_sizes),
        "contexts": list(axes.contexts),
        **{name: _plain(getattr(settings, name, None)) for name in SETTINGS},
    }


def _graph_sizes(worker: Any) -> list[int]:
    _, graphs = worker._dynamic_spec_parts
    return [] if graphs is None else list(graphs.batch_sizes)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
