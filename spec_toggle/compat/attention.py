"""Running a model with an attention backend of our own, and storing its KV."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

try:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
except ImportError:  # before 0.5.20 a batch holds its attention backend, and its slots are a tensor
    forward_context = None


def attending(runner: Any, batch: Any, backend: Any) -> contextlib.AbstractContextManager[None]:
    """Let the layers of ``runner`` use ``backend`` for the ``ForwardBatch`` inside the block."""
    if forward_context is None:
        batch.attn_backend = backend
        batch.token_to_kv_pool = runner.token_to_kv_pool
        batch.req_to_token_pool = runner.req_to_token_pool
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = forward_context(
        ForwardContext(attn_backend=backend), forward_batch=batch
    )
    return context


def store_kv(pool: Any, layer: Any, batch: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write [tokens, heads, size] to the slots of ``batch``."""
    location = batch.out_cache_loc if forward_context is None else KVWriteLoc.for_batch(batch)
    pool.set_kv_buffer(layer, location, keys, values, layer.k_scale, layer.v_scale)
