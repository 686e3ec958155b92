"""Hooks that let SGLang 0.5.23 run tensor-parallel ranks on a CPU without AMX.

Each rank is a process of its own, as on GPUs, and all collectives go through ``torch.distributed``
over gloo, which is what SGLang itself does for CPU tensors without shared-memory kernels. Two
things stand before that: see each hook.
"""

from collections.abc import Callable
from typing import Any

GROUP_TARGET = "sglang.srt.distributed.parallel_state.init_model_parallel_group"
BINDING_TARGET = "sglang.srt.utils.numa_utils.init_threads_binding"


def without_gpu_communicators(original_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Groups of more than one rank make NCCL communicators even on a CPU, where the library is
    found, because torch brings it along, and then asks for a CUDA device. CPU tensors never use
    them."""
    return original_fn(*args, **{**kwargs, "use_pynccl": False, "use_custom_allreduce": False})


def without_binding(original_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """SGLang wants a NUMA node, or a list of cores, for each rank. Only AMX kernels would use the
    answer: here ranks share the cores as the operating system sees fit."""
