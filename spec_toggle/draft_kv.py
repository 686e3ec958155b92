"""Writing the draft's KV without running the rest of the draft."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

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


class DraftKvWriter:
    """Fills the draft's KV for any set of positions at once.

    An EAGLE draft has one layer, so the KV of a position depends on its token and hidden state
    alone. What follows the attention (most of the weights, and the vocabulary) only serves the
    position that is drafted from; here the forward ends where the KV is stored.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._runner = draft_runner_of(worker)
        self._backend = _KvOnlyBackend(self._runner)

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
        ):
            try:
                self._runner.model.forward(entries.tokens, entries.positions, forward_batch)
            except _KvWritten:
                return
        raise AssertionError("the draft ran to its end without an attention layer")
