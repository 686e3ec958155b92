"""The batch that a worker forwards, and what is made from it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch

from spec_toggle.compat import has_argument, replaced

# From 0.5.17 on how much of the hidden states to keep is an argument, before a field of the batch.
_MODE_IS_ARGUMENT = has_argument(ForwardBatch.init_new, "capture_hidden_mode")
# Fields that a draft-extend rebinds, by the names of every kind of batch.
_EXTEND_FIELDS = (
    *("input_ids", "spec_info", "forward_mode", "extend_num_tokens", "seq_lens_sum"),
    *("extend_lens", "prefix_lens"),
    # Of the batch of a worker, and of that of the worker without overlap of 0.5.12.
    *("extend_seq_lens", "extend_prefix_lens", "seq_lens", "seq_lens_cpu", "capture_hidden_mode"),
    *("req_pool_indices", "return_logprob", "return_hidden_states"),
)


def forwardable(batch: Any) -> Any:
    """What the host's forwards take: a ``ModelWorkerBatch`` where there is one.

    Editing that one leaves the ``ScheduleBatch`` that it was made from as it is.
    """
    make = getattr(batch, "get_model_worker_batch", None)
    return batch if make is None else make()


def forward_batch(batch: Any, runner: Any, mode: CaptureHiddenMode) -> Any:
    """A ``ForwardBatch`` of a forwardable ``batch`` that keeps hidden states as ``mode`` says."""
    values = {"capture_hidden_mode": mode, "return_hidden_states_before_norm": False}
    if _MODE_IS_ARGUMENT:
        return ForwardBatch.init_new(batch, runner, **values)
    with replaced(batch, **values):
        return ForwardBatch.init_new(batch, runner)


def next_slots(batch: Any, table: torch.Tensor) -> torch.Tensor:
    """The KV slot of the token after each request's committed ones, int64 [batch].

    ``table``: ``req_to_token``.
    """
    return table[batch.req_pool_indices.long(), batch.seq_lens.long()].to(torch.int64)


def host_rows(batch: Any) -> torch.Tensor:
    """Request-pool indices, int64 [batch] on the host."""
    rows = getattr(batch, "req_pool_indices_cpu", None)
    if rows is not None:
        return rows.long()
    indices = [req.req_pool_idx for req in batch.reqs]
    if None in indices:  # given back by a result that was processed since; waits for the device
        return batch.req_pool_indices.cpu().long()
    return torch.tensor(indices, dtype=torch.int64)


def committed_length(req: Any) -> int:
    """Tokens whose KV the request keeps."""
    return int(getattr(req, "kv", req).kv_committed_len)


def extend_fields(batch: Any, slots: torch.Tensor) -> dict[str, Any]:
    """Fields that a draft-extend rebinds, so that they can be restored after it."""
    fields = {name: getattr(batch, name) for name in _EXTEND_FIELDS if hasattr(batch, name)}
    return {**fields, "out_cache_loc": slots, "extend_logprob_start_lens": None}


def extend_lengths(batch: Any) -> tuple[Any, Any]:
    """Tokens and prefix of each request of a prefill."""
    if hasattr(batch, "extend_lens"):
        return batch.extend_lens, batch.prefix_lens
    return batch.extend_seq_lens, batch.extend_prefix_lens


def one_token_shorter(batch: Any) -> contextlib.AbstractContextManager[None]:
    """Lengths of a decode batch without each request's last token, inside the block."""
    on_host = batch.seq_lens_cpu
    return replaced(
        batch,
        seq_lens=batch.seq_lens - 1,
        seq_lens_cpu=None if on_host is None else on_host - 1,
        seq_lens_sum=None if on_host is None else int(on_host.sum()) - len(on_host),
    )
