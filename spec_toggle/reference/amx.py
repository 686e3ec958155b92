"""Hooks that let SGLang 0.5.23 choose the CPU paths the reference ops stand behind.

Each is an AROUND hook of SGLang's plugin framework, ``hook(original_fn, *args, **kwargs)``, to be
registered only when the reference engine was asked for (``SPEC_TOGGLE_REFERENCE_ENGINE=1``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from .tensor_parallel import (
    BINDING_TARGET,
    GROUP_TARGET,
    without_binding,
    without_gpu_communicators,
)

AMX_TARGET = "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks"
LAST_LOC_TARGET = "sglang.kernels.ops.memory.common.get_last_loc_triton"
GATHER_TARGET = "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras"
OVERLAP_TARGET = "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu"


def keep_intel_amx(original_fn: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
    """Argument resolution gives up ``intel_amx`` on a CPU without AMX: keep it.

    It is the one CPU backend with a multi-step draft, and behind it are the reference ops, which
    need no AMX. Layers ask the machine itself, so they stay on their native PyTorch paths.
    """
    declared = original_fn(*args, **kwargs)
    if declared == {"attention_backend": "torch_native"}:
        return {}
    return declared


def last_loc_in_torch(
    original_fn: Callable[..., Any],
    req_to_token: Any,
    req_pool_indices_tensor: Any,
    prefix_lens_tensor: Any,
) -> Any:
    """With ``page_size > 1`` the slot before each prefix end is looked up by a Triton kernel unless
    the backend is torch_native, also on a CPU, where it cannot run. SGLang has a torch version."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)


def gather_in_torch(original_fn: Callable[..., Any], indices: Any, *buffers: Any) -> Any:
    """With the overlap schedule, a round's draft state comes from relay buffers ``[rows, ...]``
    (the last one may be None) through a Triton kernel: gather the rows ``indices`` in torch."""
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)


def keep_overlap(original_fn: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Speculation on a CPU turns the overlap schedule off: leave the user's choice, so that both
    schedules can be tested without a GPU."""


class ReferenceHook(NamedTuple):
    target: str
    handler: Callable[..., Any]


REFERENCE_HOOKS = (
    ReferenceHook(AMX_TARGET, keep_intel_amx),
    ReferenceHook(LAST_LOC_TARGET, last_loc_in_torch),
    ReferenceHook(GATHER_TARGET, gather_in_torch),
    ReferenceHook(OVERLAP_TARGET, keep_overlap),
    ReferenceHook(GROUP_TARGET, without_gpu_communicators),
    ReferenceHook(BINDING_TARGET, without_binding),
)
