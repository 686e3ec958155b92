"""Draft sync ``deferred``, and ``off`` as its case without writing."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_toggle.compat import build, replaced
from spec_toggle.compat.batch import extend_lengths, host_rows
from spec_toggle.compat.draft import (
    aux_width,
    draft_of,
    draft_runner_of,
    prefill_method,
    prompt_tail_tokens,
    state_spec,
)
from spec_toggle.draft_extend import draft_state
from spec_toggle.draft_kv import DraftKvWriter
from spec_toggle.draft_sync import DraftSync
from spec_toggle.pending_log import NONE, Entries, PendingLog
from spec_toggle.transfer import to_device

logger = logging.getLogger(__name__)

# Set to 1, every iteration asserts that the pending entries describe the batch. It waits for the
# device, and is for tests.
CHECK_ENVIRONMENT = "SPEC_TOGGLE_CHECK"


class DeferredSync(DraftSync):
    """The draft's KV is written for many tokens at once, and its state computed at resume.

    Plain steps, and the prefills between them, only log what the draft needs. The log is written to
    the draft's KV when it holds ``budget`` tokens, and before the draft reads or writes it: in a
    round, in a prefill that rounds follow, and on a server without work. The draft state is
    computed at the resume.

    Without ``fills``, logged tokens leave holes in the draft's KV: sync ``off``. The draft then
    continues from a valid state, but cold.
    """

    def __init__(self, worker: Any, budget: int, fills: bool = True) -> None:
        runner = draft_runner_of(worker)
        max_requests = worker.req_to_token_pool.req_to_token.shape[0]
        self._worker = worker
        self._writer = DraftKvWriter(worker)
        prefill = getattr(draft_of(worker), prefill_method(worker))
        self._arguments = tuple(inspect.signature(prefill).parameters)
        self._budget = budget
        self._fills = fills
        self._log = PendingLog(
            budget + max_requests,
            max_requests,
            runner.token_to_kv_pool.size + runner.token_to_kv_pool.page_size,
            aux_width(worker),
            runner.model_config.dtype,
            worker.device,
        )
        self._checks = os.environ.get(CHECK_ENVIRONMENT) == "1"
        logger.info(
            "Dynamic speculation: draft sync keeps up to %d tokens in %.2f GB.",
            self._log.capacity,
            self._log.nbytes / 2**30,
        )

    @contextlib.contextmanager
    def prefill(self, batch: Any, is_plain: bool) -> Iterator[None]:
        if not is_plain:
            self._flush()
            yield
            self._log.forget(host_rows(batch))
            return
        draft, name = draft_of(self._worker), prefill_method(self._worker)
        prefill = functools.partial(self._prefill, getattr(draft, name))
        with replaced(draft, **{name: prefill}):
            yield

    def after_plain_step(self, batch: Any, result: Any, slots: torch.Tensor) -> None:
        rows = host_rows(batch)
        hidden, tokens = result.logits_output.hidden_states, result.next_token_ids
        if not self._log.has_room(len(rows)):
            self._flush()
        self._log.append_step(rows, Entries(hidden, tokens.long(), slots, batch.seq_lens.long()))
        if self._checks:
            table = self._worker.req_to_token_pool.req_to_token
            self._log.check(rows, batch.seq_lens.long() + 1, table)
        if self._log.pending >= self._budget:
            self._flush()

    def before_round(self, batch: Any) -> None:
        if self._log.is_empty:
            return
        self._flush()
        rows = host_rows(batch)
        newest = self._log.newest(rows)
        if bool((newest != NONE).any()):
            if self._checks:
                table = self._worker.req_to_token_pool.req_to_token
                self._log.check(rows, batch.seq_lens.long(), table)
            self._resume(batch, newest)
        self._log.forget(rows)

    @property
    def pending(self) -> int:
        return self._log.pending

    def idle(self) -> None:
        self._flush()

    def fill(self, fills: bool) -> None:
        self._flush()
        self._fills = fills

    def finish(self) -> None:
        self._flush()
        self._log.clear()

    def _flush(self) -> None:
        if not self._log.pending:
            return
        entries = self._log.take_pending()
        if not self._fills:
            return
        start = time.perf_counter()
        self._writer.write(entries)
        if self.on_flush is not None:
            self.on_flush(time.perf_counter() - start)

    def _resume(self, batch: Any, newest: torch.Tensor) -> None:
        """Draft from each request's last committed token; newest: int64 [batch], host."""
        index = newest.clamp(min=0)
        meta = torch.stack((index, (newest != NONE).long()))
        meta = to_device(meta, batch.seq_lens.device)
        hidden, tokens = self._log.gather(meta[0])
        stale = meta[1] > 0
        state = draft_state(self._worker, batch, hidden, tokens, stale)
        draft_input = batch.spec_info
        for name, fresh in state.items():
            before = getattr(draft_input, name)
            setattr(draft_input, name, torch.where(stale.unsqueeze(1), fresh, before))

    def _prefill(
        self,
        original: Callable[..., Any],
        batch: Any,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        *others: Any,
        **kwargs: Any,
    ) -> Any:
        """Upstream's draft prefill, ``original``, for a prefill that plain steps follow.

        ``others``: what else a release passes, multimodal embeddings among it.
        """
        rows = host_rows(batch)
        given = dict(zip(self._arguments[3:], others, strict=False), **kwargs)
        has_embeddings = given.get("mm_input_embeds") is not None
        if has_embeddings or not self._log.has_room(len(rows)):
            self._flush()
            result = original(batch, target_hidden_states, next_token_ids, *others, **kwargs)
            self._log.forget(rows)
            return result
        self._take_prompts(rows, _prompts(batch, target_hidden_states, next_token_ids))
        draft_input = _blank_draft_input(self._worker, batch, next_token_ids)
        if draft_of(self._worker) is self._worker:
            batch.spec_info = draft_input  # where the worker without overlap leaves it
        return draft_input

    def _take_prompts(self, rows: torch.Tensor, prompts: Prompts) -> None:
        """Log a prefill, or write it where the log has no room."""
        entries = prompts.entries
        if self._fills and self._log.has_room(len(entries.tokens)):
            self._log.append(rows, entries, prompts.last)
            return
        self._flush()
        self._writer.write(entries)
        newest = Entries(*(part[prompts.last_on_device] for part in entries))
        self._log.append_synced(rows, newest)


class Prompts(NamedTuple):
    """Entries for every token of a prefill; ``last``: int64 [batch], which is each request's last,
    on the host and on the device."""

    entries: Entries
    last: torch.Tensor
    last_on_device: torch.Tensor


def _prompts(batch: Any, hidden: torch.Tensor, next_token_ids: torch.Tensor) -> Prompts:
    """hidden: [tokens, width]; next_token_ids: int64 [batch]."""
    extend, prefix = np.asarray(extend_lengths(batch))
    ends = extend.cumsum()
    positions = np.arange(ends[-1]) + np.repeat(prefix - ends + extend, extend)
    # One copy, and few kernels: each would stand between the prefill and the next iteration.
    layout = torch.from_numpy(np.concatenate((positions, ends - 1)))
    on_device = to_device(layout, batch.seq_lens.device)
    sizes = (len(positions), len(ends))
    (_, last), (at_positions, at_last) = layout.split(sizes), on_device.split(sizes)
    tokens = torch.roll(batch.input_ids.long(), -1)
    tokens[at_last] = prompt_tail_tokens(batch, next_token_ids).long()
    slots = batch.out_cache_loc.long()
    return Prompts(Entries(hidden, tokens, slots, at_positions), last, at_last)


def _blank_draft_input(worker: Any, batch: Any, next_token_ids: torch.Tensor) -> EagleDraftInput:
    """A draft input of the right shapes; the resume computes its state."""
    size, dtype = state_spec(worker)
    count, device = len(next_token_ids), next_token_ids.device
    return build(
        EagleDraftInput,
        new_seq_lens=batch.seq_lens,  # where it relays them
        topk_p=torch.zeros((count, worker.topk), dtype=torch.float32, device=device),
        topk_index=torch.zeros((count, worker.topk), dtype=torch.int64, device=device),
        hidden_states=torch.zeros((count, size), dtype=dtype, device=device),
        bonus_tokens=next_token_ids,
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )
