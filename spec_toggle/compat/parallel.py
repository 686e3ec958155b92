"""The process groups of the host."""

from __future__ import annotations

from typing import Any

try:
    from sglang.srt.runtime_context import get_parallel
except ImportError:  # 0.5.12 keeps them in a module
    from sglang.srt.distributed.parallel_state import get_tp_group

    get_parallel = None


def tensor_parallel_group() -> Any:
    return get_tp_group() if get_parallel is None else get_parallel().tp_group
