"""Decode and extend attention over a paged KV cache in plain PyTorch.

Argument order and semantics are those of the ``sgl_kernel`` CPU ops as SGLang 0.5.23 calls them in
``srt/layers/attention/intel_amx_backend``. Requests are computed one by one, so a request's result
does not depend on its neighbours in the batch. Scores and sums are in float32.
"""

import torch
from torch import Tensor


def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor | None,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Write the new K/V at ``loc``, then attend with one query per request.

    ``query`` ``[bs, heads, dim]``, ``output`` ``[bs, heads, v_dim]``; buffers ``[slots, kv_heads,
    dim or v_dim]``; ``key`` and ``value`` ``[bs, kv_heads, ...]`` or None when already written;
    ``req_to_token`` ``[rows, width]``; ``seq_lens`` ``[bs]`` counts the new token. ``attn_logits``
    is the native kernel's scratch space and is not touched.
    """
    _refuse(k_scale, v_scale, is_cross_attn, sliding_window_size, encoder_lens, sinks)
    if key is not None and value is not None and loc is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    rows = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for i, (row, length) in enumerate(rows):
        if length > 0:
            slots = req_to_token[row, :length]
            keys, values = k_buffer.index_select(0, slots), v_buffer.index_select(0, slots)
            output[i : i + 1] = _attend(query[i : i + 1], keys, values, None, sm_scale, logit_cap)


def extend_attention_cpu(
    q_extend: Tensor,
    k_extend: Tensor | None,
    v_extend: Tensor | None,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int | None,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attend with the last ``extend_seq_lens[i]`` tokens of every request; the cache is only read.

    ``q_extend`` ``[tokens, heads, dim]`` is packed, request ``i`` starting at
    ``extend_start_loc[i]``; ``seq_lens`` counts the extended tokens. K/V of those tokens come from
    ``k_extend`` and ``v_extend``, or from the cache when they are None; the prefix comes from the
    cache and is always visible. Among the extended tokens: ``tree_mask`` (bool, flat, one ``n * n``
    block per request, row sees column) when given, else causal or full.
    """
    _refuse(k_scale, v_scale, is_cross_attn, sliding_window_size, encoder_lens, sinks)
    pools, lengths = req_pool_indices.tolist(), seq_lens.tolist()
    starts, counts = extend_start_loc.tolist(), extend_seq_lens.tolist()
    mask_offset = 0
    for row, length, start, n in zip(pools, lengths, starts, counts, strict=True):
        if n == 0:
            continue
        new = slice(start, start + n)
        hidden = None
        if tree_mask is not None:
            hidden = ~tree_mask[mask_offset : mask_offset + n * n].view(n, n).bool()
            mask_offset += n * n
        elif is_causal and n > 1:
            hidden = torch.ones((n, n), dtype=torch.bool).triu_(1)
        slots = req_to_token[row, :length]
        keys = _prefix_and_new(k_buffer, slots, k_extend, new)
        values = _prefix_and_new(v_buffer, slots, v_extend, new)
        o_extend[new] = _attend(q_extend[new], keys, values, hidden, sm_scale, logit_cap)


def _prefix_and_new(buffer: Tensor, slots: Tensor, extend: Tensor | None, new: slice) -> Tensor:
    """All K or V of one request, ``[length, kv_heads, dim]``."""
    if extend is None:
        return buffer.index_select(0, slots)
    tail = extend[new].view(-1, *buffer.shape[1:])
    prefix = slots.numel() - tail.shape[0]
    if prefix == 0:
        return tail
    return torch.cat((buffer.index_select(0, slots[:prefix]), tail.to(buffer.dtype)))


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    hidden: Tensor | None,
    sm_scale: float,
    logit_cap: float,
) -> Tensor:
    """Grouped-query attention of one request; returns ``[n, heads, v_dim]``.

    ``query`` ``[n, heads, dim]``, ``keys`` and ``values`` ``[length, kv_heads, ...]``; ``hidden``
    ``[n, n]`` says which of the last ``n`` keys a query must not see.
    """
    n, heads, dim = query.shape
    length, kv_heads, _ = keys.shape
    group = heads // kv_heads
    # [kv_heads, group * n, dim]: one matrix product per KV head serves its whole query group.
    grouped = query.float().view(n, kv_heads, group, dim).permute(1, 2, 0, 3)
    grouped = grouped.reshape(kv_heads, group * n, dim)
    scores = torch.bmm(grouped, keys.float().permute(1, 2, 0)).mul_(sm_scale)
    if logit_cap > 0:
        scores.div_(logit_cap).tanh_().mul_(logit_cap)
    if hidden is not None:
        tail = scores.view(kv_heads, group, n, length)[..., length - n :]
        tail.masked_fill_(hidden, float("-inf"))
    mixed = torch.bmm(torch.softmax(scores, dim=-1), values.float().transpose(0, 1))
    mixed = mixed.view(kv_heads, group, n, -1).permute(2, 0, 1, 3)
    return mixed.reshape(n, heads, -1)


def _refuse(
    k_scale: float,
    v_scale: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Name the first argument that asks for something this reference does not compute."""
    # SGLang passes the window plus one, and -1 stands for no window: 0 means none.
    unsupported = {
        "k_scale": k_scale != 1.0,
        "v_scale": v_scale != 1.0,
        "is_cross_attn": is_cross_attn,
        "sliding_window_size": sliding_window_size > 0,
        "encoder_lens": encoder_lens is not None,
        "sinks": sinks is not None,
    }
    for name, is_used in unsupported.items():
        if is_used:
            raise NotImplementedError(f"the reference attention does not support {name}")
