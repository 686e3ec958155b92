"""Decode batches of requests that do not exist, to time iterations before any is served."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.eagle_utils import get_draft_recurrent_hidden_state_spec


class SyntheticBatches:
    """Builds batches on a scheduler that serves nothing yet.

    Only free KV slots and free request rows are used, without taking them: what is written there
    means nothing, and the first real request writes its own. ``close`` makes the rows zero again.
    ``growth``: tokens by which each batch may be advanced.
    """

    def __init__(self, scheduler: Any, growth: int) -> None:
        self._scheduler = scheduler
        self._worker = scheduler.model_worker
        self._rows = scheduler.req_to_token_pool.req_to_token
        self._reserve = int(get_alloc_reserve_per_decode()) + growth
        self._generator = torch.Generator().manual_seed(0)
        self._reqs: list[Any] = []

    @property
    def max_size(self) -> int:
        """Requests: the most that the scheduler runs together, with row 0 for padding."""
        return min(int(self._scheduler.max_running_requests), int(self._rows.shape[0]) - 1)

    @property
    def max_context(self) -> int:
        """Tokens that one request can have with its draft windows."""
        pool = int(self._scheduler.token_to_kv_pool_allocator.size)
        longest = int(self._scheduler.model_config.context_len)
        return min(pool, longest, int(self._rows.shape[1])) - self._span(0)

    def fits(self, size: int, context: int) -> bool:
        pool = int(self._scheduler.token_to_kv_pool_allocator.size)
        return context <= self.max_context and size * self._span(context) <= pool

    def make(self, size: int, context: int) -> Any:
        """A ``ScheduleBatch`` of ``size`` requests with ``context`` committed tokens each."""
        scheduler, device = self._scheduler, self._worker.device
        rows = torch.arange(1, size + 1)
        lengths = torch.full((size,), context, dtype=torch.int64)
        self._map_slots(size, context)
        batch = ScheduleBatch(
            reqs=self._requests(size),
            req_to_token_pool=scheduler.req_to_token_pool,
            token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
            tree_cache=scheduler.tree_cache,
            model_config=scheduler.model_config,
            enable_overlap=scheduler.enable_overlap,
            device=device,
            forward_mode=ForwardMode.DECODE,
            spec_algorithm=scheduler.spec_algorithm,
            req_pool_indices=rows.to(device),
            req_pool_indices_cpu=rows,
            seq_lens=lengths.to(device),
            orig_seq_lens=lengths.to(device=device, dtype=torch.int32),
            multimodal_inputs=[None] * size,
            spec_info=self._draft_input(size),
        )
        if self._needs_host_lengths():
            batch.seq_lens_cpu, batch.seq_lens_sum = lengths, size * context
        batch.sampling_info = SamplingBatchInfo.from_schedule_batch(
            batch, scheduler.model_config.vocab_size
        )
        return batch

    @staticmethod
    def advance(batch: Any) -> None:
        """Each request has one committed token more, as after a plain step."""
        batch.seq_lens = batch.seq_lens + 1
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            batch.seq_lens_sum += len(batch.reqs)

    def close(self) -> None:
        self._rows[1:] = 0

    def _needs_host_lengths(self) -> bool:
        """As in service: with overlap some backends plan on the device alone."""
        scheduler = self._scheduler
        return not scheduler.enable_overlap or bool(scheduler.future_map.needs_cpu_seq_lens)

    def _span(self, context: int) -> int:
        """KV slots of one request: its tokens, growth and draft windows, in whole pages."""
        page = int(self._scheduler.page_size)
        return -(-(context + self._reserve) // page) * page

    def _map_slots(self, size: int, context: int) -> None:
        """Give each row slots of its own: reads of one shared slot would come from a cache."""
        page = int(self._scheduler.page_size)
        span = min(self._span(context), int(self._rows.shape[1]))
        # Slots of the first page are padding.
        slots = page + torch.arange(size * self._span(context)).view(size, -1)[:, :span]
        self._rows[1 : size + 1, :span] = slots.to(self._rows)

    def _requests(self, size: int) -> list[Any]:
        params = SamplingParams(temperature=0, max_new_tokens=1)
        params.normalize(None)
        for index in range(len(self._reqs), size):
            self._reqs.append(Req(f"spec-toggle-profile-{index}", "", array("q", [0]), params))
        return self._reqs[:size]

    def _draft_input(self, size: int) -> EagleDraftInput:
        """Random tokens and states: equal ones would all take the same experts."""
        device, topk = self._worker.device, self._worker.topk
        draft = self._worker.draft_worker
        vocab = int(self._scheduler.model_config.vocab_size)
        hot = getattr(draft, "hot_token_id", None)
        width, dtype = get_draft_recurrent_hidden_state_spec(draft.draft_runner)

        def tokens(high: int, *shape: int) -> torch.Tensor:
            return torch.randint(high, shape, generator=self._generator).to(device)

        hidden = torch.randn((size, width), generator=self._generator)
        return EagleDraftInput(
            topk_p=torch.full((size, topk), 1 / topk, device=device),
            topk_index=tokens(vocab if hot is None else len(hot), size, topk),
            hidden_states=hidden.to(device=device, dtype=dtype),
            bonus_tokens=tokens(vocab, size),
        )
