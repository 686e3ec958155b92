"""Keeping the draft model's KV cache in step with tokens that plain steps produce."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
from sglang.srt.speculative.eagle_utils import get_draft_input_from_target_hidden_dim
from sglang.srt.speculative.spec_utils import renorm_draft_probs
from sglang.srt.utils.common import fast_topk

from spec_toggle.compat import draft_contexts, replaced

# The KV pool's padding slot: what is written there is never read.
DUMMY_SLOT = 0


class DraftSync(Protocol):
    # Whether the draft runs after every plain step, and so is the last reader of shared buffers.
    runs_after_plain_step: bool

    def after_plain_step(self, batch: Any, result: Any) -> None:
        """``result`` is the plain step's; its next draft input may be completed here."""

    def before_round(self, batch: Any) -> None:
        """Make ``batch.spec_info`` a draft input that upstream's round can start from."""

    def after_prefill(self, batch: Any) -> None:
        """A prefill has synced the draft for every request of ``batch``."""


class EagerSync:
    """One draft-extend per plain step: always warm, a draft forward per token.

    Upstream's draft-extend graphs have the width of a round. Where they exist the one token is
    padded to it, since a replay costs less than launching a narrower forward kernel by kernel; what
    the padding writes lies past the committed length, where refused drafts lie after a round.
    """

    runs_after_plain_step = True

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def after_plain_step(self, batch: Any, result: Any) -> None:
        draft = self._worker.draft_worker
        has_graphs = draft.cuda_graph_runner_for_draft_extend is not None
        width = draft.speculative_num_draft_tokens if has_graphs else 1
        columns = torch.arange(width, device=batch.device)
        positions = batch.seq_lens.long().unsqueeze(1) + columns
        table = self._worker.req_to_token_pool.req_to_token
        slots = table[batch.req_pool_indices.long().unsqueeze(1), positions]
        output = result.logits_output
        with (
            draft_contexts(self._worker),
            replaced(draft, speculative_num_draft_tokens=width),
            replaced(batch, **_extend_fields(batch, slots.flatten().to(torch.int64))),
            replaced(result, next_token_ids=_pad_rows(result.next_token_ids, width)),
            replaced(output, hidden_states=_pad_rows(output.hidden_states, width)),
        ):
            draft._draft_extend_for_decode(batch, result)

    def before_round(self, batch: Any) -> None: ...

    def after_prefill(self, batch: Any) -> None: ...


class RecentTokens:
    """The last ``window`` plain tokens of each request, with the target's hidden states.

    Rows are request-pool indices, so entries need not move when batches merge or shrink. A token at
    position p lives in column p % window. ``pending`` counts, on the host and from the batch
    alone, the tokens whose draft KV is not written.
    """

    def __init__(
        self, max_requests: int, window: int, width: int, dtype: torch.dtype, device: str
    ) -> None:
        """``width``: of the hidden states the draft takes, in elements of ``dtype``."""
        self.window = window
        size = (max_requests, window)
        # Zeros: rows with nothing pending are gathered too, and must be finite.
        self._hidden = torch.zeros((*size, width), dtype=dtype, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self.pending = torch.zeros(max_requests, dtype=torch.int64)

    def push(self, batch: Any, hidden: torch.Tensor, tokens: torch.Tensor) -> None:
        """hidden: [batch, aux width]; tokens: int64 [batch], the token after each position."""
        index = batch.req_pool_indices.long()
        if self.window > 1:
            index = index * self.window + batch.seq_lens.long() % self.window
        self._hidden.flatten(0, 1).index_copy_(0, index, hidden)
        self._tokens.flatten().index_copy_(0, index, tokens)
        host_rows = batch.req_pool_indices_cpu.long()
        self.pending[host_rows] = (self.pending[host_rows] + 1).clamp(max=self.window)

    def gather(
        self, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [n, aux width] and following tokens int64 [n] at ``positions``."""
        columns = positions % self.window
        return self._hidden[rows, columns], self._tokens[rows, columns]


class WindowSync:
    """Writes the draft KV of a request's last plain tokens in one draft-extend, before a round.

    With a window of one this is sync ``off``: the draft continues over a hole, from a valid state.
    """

    runs_after_plain_step = False

    def __init__(self, worker: Any, window: int = 1) -> None:
        self._worker = worker
        runner = worker.draft_worker.draft_runner
        self._recent = RecentTokens(
            worker.req_to_token_pool.req_to_token.shape[0],
            window,
            get_draft_input_from_target_hidden_dim(runner),
            runner.model_config.dtype,
            worker.device,
        )

    def after_plain_step(self, batch: Any, result: Any) -> None:
        self._recent.push(batch, result.logits_output.hidden_states, result.next_token_ids)

    def after_prefill(self, batch: Any) -> None:
        self._recent.pending[batch.req_pool_indices_cpu.long()] = 0

    def before_round(self, batch: Any) -> None:
        host_rows = batch.req_pool_indices_cpu.long()
        pending = self._recent.pending[host_rows]
        if not bool(pending.any()):
            return
        extended = self._extend(batch, pending)
        draft_input = batch.spec_info
        stale = (pending > 0).to(batch.device, non_blocking=True).unsqueeze(1)
        for name, fresh in extended.items():
            setattr(draft_input, name, torch.where(stale, fresh, getattr(draft_input, name)))
        self._recent.pending[host_rows] = 0

    def _extend(self, batch: Any, pending: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the draft over each request's pending positions; pending: int64 [batch], host.

        Requests with nothing pending run one row into the dummy slot: every row of an extend
        needs a length.
        """
        runner = self._worker.draft_worker.draft_runner
        lengths = pending.clamp(min=1)
        total = int(lengths.sum())
        index = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        offset = torch.arange(total) - (lengths.cumsum(0) - lengths)[index] - lengths[index]
        meta = torch.stack((index, offset, (pending > 0)[index].long())).to(batch.device)
        rows = batch.req_pool_indices.long()[meta[0]]
        positions = batch.seq_lens.long()[meta[0]] + meta[1]
        hidden, tokens = self._recent.gather(rows, positions)
        slots = self._worker.req_to_token_pool.req_to_token[rows, positions].to(torch.int64)
        fields = _extend_fields(batch, torch.where(meta[2] > 0, slots, DUMMY_SLOT))
        fields.update(
            input_ids=tokens,
            spec_info=EagleDraftExtendInput(
                hidden_states=hidden, num_tokens_per_req=1, num_tokens_for_logprob_per_req=1
            ),
            forward_mode=ForwardMode.EXTEND,
            extend_num_tokens=total,
            **_lengths(batch, lengths),
        )
        with draft_contexts(self._worker), replaced(batch, **fields):
            forward_batch = ForwardBatch.init_new(
                batch,
                runner,
                capture_hidden_mode=CaptureHiddenMode.LAST,
                return_hidden_states_before_norm=False,
            )
            forward_batch.return_logprob = False
            if forward_batch.extend_seq_lens_cpu is None:
                forward_batch.extend_seq_lens_cpu = lengths.tolist()  # backends take its maximum
            output = runner.forward(forward_batch).logits_output
        return self._draft_state(batch, output)

    def _draft_state(self, batch: Any, output: Any) -> dict[str, torch.Tensor]:
        """The draft state a round starts from, as upstream's draft-extend leaves it."""
        logits = output.next_token_logits
        if self._worker.topk == 1:
            topk_index = torch.argmax(logits, dim=-1, keepdim=True)
            topk_p = torch.ones_like(topk_index, dtype=torch.float32)
        else:
            probs = renorm_draft_probs(logits, batch.sampling_info, False)
            topk_p, topk_index = fast_topk(probs, self._worker.topk, dim=-1)
        return {
            "topk_p": topk_p,
            "topk_index": topk_index,
            "hidden_states": output.hidden_states,
        }


def _pad_rows(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[batch, ...] to [batch * width, ...]: each row followed by width - 1 rows of zeros."""
    if width == 1:
        return rows
    padded = rows.new_zeros((rows.shape[0], width, *rows.shape[1:]))
    padded[:, 0] = rows
    return padded.flatten(0, 1)


def _lengths(batch: Any, lengths: torch.Tensor) -> dict[str, Any]:
    """Extend and prefix lengths, on the host where the batch keeps host lengths."""
    if batch.seq_lens_cpu is None:
        extend = lengths.to(device=batch.device, dtype=torch.int32, non_blocking=True)
        return {"extend_lens": extend, "prefix_lens": batch.seq_lens.to(torch.int32) - extend}
    prefix = batch.seq_lens_cpu - lengths
    return {"extend_lens": lengths.tolist(), "prefix_lens": prefix.tolist()}


def _extend_fields(batch: Any, slots: torch.Tensor) -> dict[str, Any]:
    """Batch fields that a draft-extend rebinds, so that they can be restored after it."""
    return {
        "out_cache_loc": slots,
        "input_ids": batch.input_ids,
        "spec_info": batch.spec_info,
        "forward_mode": batch.forward_mode,
        "extend_lens": batch.extend_lens,
        "prefix_lens": batch.prefix_lens,
        "extend_num_tokens": batch.extend_num_tokens,
        "seq_lens_sum": batch.seq_lens_sum,
        "extend_logprob_start_lens": None,
    }


def make_draft_sync(kind: str, worker: Any) -> DraftSync:
    return EagerSync(worker) if kind == "eager" else WindowSync(worker)
