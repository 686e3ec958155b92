"""Writing the draft's KV without running the rest of the draft."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from sglang.srt.layers.linear import QKVParallelLinear
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

from spec_toggle.compat import replaced
from spec_toggle.compat.attention import attending, store_kv
from spec_toggle.compat.draft import draft_contexts, draft_runner_of
from spec_toggle.pending_log import Entries


class _KvWritten(Exception):
    """Ends a draft forward once its only attention layer has stored keys and values."""


class _KvOnlyBackend:
    """An attention backend that stores keys and values and attends to nothing."""

    def __init__(self, runner: Any) -> None:
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.req_to_token_pool = runner.req_to_token_pool

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *_: Any, **__: Any
    ) -> None:
        del q
        store_kv(self.token_to_kv_pool, layer, forward_batch, k, v)
        raise _KvWritten


class KeyValueProjection:
    """A fused QKV projection without its queries, which are most of it and which nothing reads."""

    def __init__(self, projection: QKVParallelLinear) -> None:
        self._projection = projection

    @staticmethod
    def fits(projection: QKVParallelLinear) -> bool:
        """Whether its weight is a matrix as it is: not quantized, not packed."""
        is_plain = type(projection.quant_method) is UnquantizedLinearMethod
        is_packed = getattr(projection, "use_intel_amx_backend", False)
        return is_plain and not is_packed and projection.bias is None

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """[n, hidden] to [n, queries + keys + values], zeros for queries; and no bias."""
        queries = self._projection.q_proj_shard_size
        keys_values = torch.nn.functional.linear(hidden, self._projection.weight[queries:])
        return torch.nn.functional.pad(keys_values, (queries, 0)), None


class DraftKvWriter:
    """Fills the draft's KV for any set of positions at once.

    An EAGLE draft has one layer, so the KV of a position depends on its token and hidden state
    alone. What follows the attention (most of the weights, and the vocabulary) only serves the
    position that is drafted from; here the forward ends where the KV is stored. ``projections``:
    those that leave out the queries.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._runner = draft_runner_of(worker)
        self._backend = _KvOnlyBackend(self._runner)
        self.projections = [
            module
            for module in self._runner.model.modules()
            if isinstance(module, QKVParallelLinear) and KeyValueProjection.fits(module)
        ]

    @staticmethod
    def reason_against(worker: Any) -> str | None:
        """Why the draft's KV cannot be written this way, or None."""
        runner = draft_runner_of(worker)
        layers = sum(isinstance(module, RadixAttention) for module in runner.model.modules())
        pool = runner.token_to_kv_pool
        if layers != 1:
            return f"the draft has {layers} attention layers, not one"
        if not isinstance(pool, MHATokenToKVPool) or getattr(
            pool, "requires_physical_write_loc", False
        ):
            return f"the draft's KV pool is a {type(pool).__name__}"
        return None

    def write(self, entries: Entries) -> None:
        """Store the draft's keys and values for ``entries``."""
        count = len(entries.tokens)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE,  # a row per token, nothing ragged
            batch_size=count,
            input_ids=entries.tokens,
            req_pool_indices=entries.positions,  # read by attention only
            seq_lens=entries.positions,
            seq_lens_sum=0,
            out_cache_loc=entries.slots,
            positions=entries.positions,
            spec_info=EagleDraftExtendInput(
                hidden_states=entries.hidden,
                num_tokens_per_req=1,
                num_tokens_for_logprob_per_req=1,
            ),
        )
        with (
            draft_contexts(self._worker),
            attending(self._runner, forward_batch, self._backend),
            contextlib.ExitStack() as stack,
        ):
            for module in self.projections:
                stack.enter_context(replaced(module, forward=KeyValueProjection(module)))
            try:
                self._runner.model.forward(entries.tokens, entries.positions, forward_batch)
            except _KvWritten:
                return
        raise AssertionError("the draft ran to its end without an attention layer")
