"""SGLang 0.5.12 on a CPU: Triton's interpreter, and PyTorch for what it does not reach.

That release speculates on GPUs only. Its Triton kernels run interpreted; its attention kernels are
replaced, because interpreting them would take minutes, and so are the two CUDA kernels for draft
trees and the few calls of ``torch.cuda``. Sampling stays greedy: its kernel has no stand-in.
"""

from __future__ import annotations

import os
from typing import Any

import torch

QLEN_ONLY = 1  # a ``TreeMaskMode``


def activate() -> None:
    """Before Triton and SGLang are imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.record_stream = lambda *_: None


def install() -> None:
    """Once SGLang can be imported, before a scheduler is built."""
    from sglang.srt.layers.attention.triton_ops import decode_attention, extend_attention
    from sglang.srt.speculative import eagle_info_v2, eagle_utils

    decode_attention.decode_attention_fwd = attend_decode
    extend_attention.extend_attention_fwd = attend_extend
    for module in (eagle_utils, eagle_info_v2):
        module._is_cuda = True
    eagle_utils.sgl_build_tree_kernel_efficient = build_tree
    import sgl_kernel
    from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar
    from xgrammar import apply_token_bitmask_inplace

    from spec_toggle.reference.tree_ops import verify_tree_greedy_cpu

    sgl_kernel.verify_tree_greedy = verify_tree_greedy_cpu
    XGrammarGrammar.apply_vocab_mask = staticmethod(
        lambda logits, vocab_mask: apply_token_bitmask_inplace(logits, vocab_mask)
    )


def build_tree(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    lengths: torch.Tensor,
    tree_mask: torch.Tensor,
    *others: Any,
) -> None:
    """``build_tree_kernel_efficient`` with the committed tokens in front of each row's mask."""
    from spec_toggle.reference.tree_ops import build_tree_kernel_efficient_cpu

    count = others[-2]
    square = torch.zeros(len(lengths) * count * count, dtype=torch.bool)
    build_tree_kernel_efficient_cpu(
        parent_list, selected_index, lengths, square, *others[:-1], QLEN_ONLY
    )
    start = 0
    for length, rows in zip(lengths.tolist(), square.view(-1, count, count), strict=True):
        size = count * (length + count)
        full = tree_mask[start : start + size].view(count, length + count)
        full[:, :length], full[:, length:] = True, rows
        start += size


def attend_decode(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    *others: Any,
    **_: Any,
) -> None:
    """q, out: [rows, heads, size]; each row attends to its slots."""
    scale = others[4]
    bounds = kv_indptr.tolist()
    for row in range(len(q)):
        slots = kv_indices[bounds[row] : bounds[row + 1]].long()
        out[row] = _attend(q[row : row + 1], k_buffer[slots], v_buffer[slots], scale, None)[0]


def attend_extend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    custom_mask: torch.Tensor | None,
    is_causal: bool,
    mask_indptr: torch.Tensor | None,
    *others: Any,
    **_: Any,
) -> None:
    """q, out: [tokens, heads, size]; a request's tokens attend to its prefix and to themselves."""
    scale = others[3]
    ends, bounds = qo_indptr.tolist(), kv_indptr.tolist()
    for row in range(len(ends) - 1):
        own = slice(ends[row], ends[row + 1])
        count = own.stop - own.start
        if not count:
            continue
        slots = kv_indices[bounds[row] : bounds[row + 1]].long()
        mask = None
        if custom_mask is not None:
            first = int(mask_indptr[row])
            size = count * (len(slots) + count)
            mask = custom_mask[first : first + size].view(count, -1).bool()
        elif is_causal:
            mask = torch.ones(count, len(slots) + count, dtype=torch.bool).tril(len(slots))
        keys, values = (
            torch.cat((buffer[slots], fresh[own]))
            for buffer, fresh in ((k_buffer, k), (v_buffer, v))
        )
        out[own] = _attend(q[own], keys, values, scale, mask)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """q: [m, heads, size]; k, v: [n, kv heads, size]; mask: bool [m, n].

    By sums, not by matrix products, whose rounding depends on m: a query's result must not depend
    on its neighbours, as the tests compare the draft after one token with that after a prompt.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, dim=1).transpose(0, 1) for part in (k, v))
    scores = (q.unsqueeze(2) * k).sum(-1) * scale  # [m, heads, n]
    if mask is not None:
        scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
    return (scores.softmax(-1).unsqueeze(-1) * v).sum(2)
