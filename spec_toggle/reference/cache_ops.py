"""KV-cache bookkeeping of the CPU engine in plain PyTorch.

Each function has the argument order of the ``sgl_kernel`` CPU op it stands for. What it must do is
defined by the Triton kernel beside the call site in SGLang 0.5.23: ``srt/mem_cache/allocation``,
``kernels/ops/kvcache/cache_move`` and ``kernels/ops/speculative/{eagle,cache_locs}``.
"""

import ctypes

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy cache rows ``src_loc`` to ``tgt_loc`` in every buffer.

    ``data_ptrs`` (uint64) holds one buffer address per layer and per K or V, ``strides`` the bytes
    of one row of that buffer; ``tgt_loc`` and ``src_loc`` are ``[n]`` integers. Rows may overlap:
    all of a buffer's rows are read before one is written.
    """
    pairs = [(t, s) for t, s in zip(tgt_loc.tolist(), src_loc.tolist(), strict=True) if t != s]
    if not pairs:
        return
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + s * stride, stride) for _, s in pairs]
        for (t, _), row in zip(pairs, rows, strict=True):
            ctypes.memmove(base + t * stride, row, stride)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Write each request's last accepted token into ``bonus_tokens`` ``[bs]``.

    ``accept_tokens`` is flat, ``accept_stride`` tokens per request; ``accept_lens`` ``[bs]``
    counts the bonus token.
    """
    rows = torch.arange(accept_lens.numel(), device=accept_lens.device) * accept_stride
    bonus_tokens.copy_(accept_tokens.flatten()[rows + accept_lens - 1])


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Pack the cache slots of the accepted tokens at the front of ``accept_out_cache_loc``.

    ``accept_index`` (any shape) indexes ``out_cache_loc``; -1 marks a token not accepted. What
    lies behind the packed slots is left as it was.
    """
    flat = accept_index.flatten()
    picked = out_cache_loc[flat[flat > -1].long()]
    accept_out_cache_loc[: picked.numel()] = picked.to(accept_out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Write each request's ``topk * num_steps`` slots from ``seq_lens`` on, request after request.

    ``req_to_token`` is ``[rows, pool_len]`` int32, ``out_cache_loc`` flat int64.
    """
    width = topk * num_steps
    columns = seq_lens.long()[:, None] + torch.arange(width, device=seq_lens.device)
    slots = req_to_token[req_pool_indices.long()[:, None], columns]
    out_cache_loc[: slots.numel()] = slots.flatten().to(out_cache_loc.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Pack ``req_to_token[row, start:end]`` of every request into ``out_cache_loc``."""
    slots = req_to_token[_cells(req_pool_indices, start_offset, end_offset)]
    out_cache_loc[: slots.numel()] = slots.to(out_cache_loc.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Spread the packed ``out_cache_loc`` over ``req_to_token[row, start:end]``: the inverse of
    :func:`assign_extend_cache_locs_cpu`."""
    rows, columns = _cells(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Return a slot table ``[bs * topk, max(seq_lens) + num_steps]``, one row per draft branch.

    A row holds the request's prefix (columns ``< seq_len``) and then only the branch's own
    ``num_steps`` slots, which the request's row keeps at ``seq_len + branch * num_steps``. At step
    ``s`` the branch attends to its first ``seq_len + s + 1`` columns.
    """
    bs = seq_lens.numel()
    if bs == 0:
        return req_to_token.new_zeros((0, num_steps))
    lens = seq_lens.long()
    table_rows = req_pool_indices.long()
    width = int(lens.max()) + num_steps
    prefix = req_to_token[table_rows, : min(width, req_to_token.shape[1])]
    table = req_to_token.new_zeros((bs, topk, width))
    table[:, :, : prefix.shape[1]] = prefix[:, None]

    steps = torch.arange(num_steps, device=lens.device)
    branches = torch.arange(topk, device=lens.device)[:, None] * num_steps
    source = lens[:, None, None] + branches + steps  # [bs, topk, num_steps]
    own = req_to_token[table_rows[:, None, None], source]
    target = (lens[:, None, None] + steps).expand(bs, topk, num_steps)
    return table.scatter_(2, target, own).view(bs * topk, width)


def _cells(rows: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every cell of the spans ``[start, end)``, span after span."""
    lengths = (end - start).clamp(min=0).long()
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if ends.numel() else 0
    columns = torch.repeat_interleave(start.long() - ends + lengths, lengths, output_size=total)
    columns += torch.arange(total, device=rows.device)
    return torch.repeat_interleave(rows.long(), lengths, output_size=total), columns
