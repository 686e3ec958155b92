"""One ordinary decode iteration on a speculative server: strip, forward, restore, report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from spec_toggle.accounting import PLAIN_RESULT
from spec_toggle.compat import replaced
from spec_toggle.decode_graphs import DecodeGraphs
from spec_toggle.ranks import keep_sampled_tokens


@contextlib.contextmanager
def stripped(batch: Any, slots: torch.Tensor, new_seq_lens: torch.Tensor) -> Iterator[None]:
    """Make a speculative decode batch an ordinary one for the block, then restore it.

    A speculative batch counts committed tokens whose KV is written; the bonus token is pending. An
    ordinary decode batch counts the token it is about to write too, so lengths grow by one.

    slots: int64 [batch], the KV slot of each request's pending token.
    new_seq_lens: int64 [batch], lengths with that token.
    """
    cpu_lengths = batch.seq_lens_cpu
    with replaced(
        batch,
        spec_info=None,
        spec_algorithm=SpeculativeAlgorithm.NONE,
        input_ids=batch.spec_info.bonus_tokens.to(torch.int64),
        out_cache_loc=slots,
        seq_lens=new_seq_lens,
        seq_lens_cpu=None if cpu_lengths is None else cpu_lengths + 1,
        seq_lens_sum=None if cpu_lengths is None else int(cpu_lengths.sum()) + len(cpu_lengths),
    ):
        yield


class PlainStep:
    """Decodes one token per request in the KV slots that the speculative path has reserved."""

    def __init__(self, worker: Any, graphs: DecodeGraphs | None) -> None:
        self._worker = worker
        # False where the draft runs after each plain step.
        self.is_target_last_reader = True
        self._target = worker.target_worker
        self._graphs = graphs
        self._ones = torch.empty(0, dtype=torch.int32)

    def run(
        self,
        batch: Any,
        on_publish: Callable[[torch.Tensor], None] | None,
        grammar_barrier: Callable[[], None] | None,
    ) -> tuple[Any, torch.Tensor]:
        """Forward the target natively and sample; return the result and the KV slots written.

        ``batch``: a ``ScheduleBatch`` in decode mode with an ``EagleDraftInput``; unchanged on
        return. The result reads like a round that accepted no draft: ``next_token_ids`` int64
        [batch] with stride 1, ``accept_lens`` int32 ones, ``logits_output.hidden_states``
        [batch, aux width], and the draft input of the batch with the new bonus tokens. Slots: int64
        [batch].
        """
        runner = self._target.model_runner
        draft_input = batch.spec_info
        slots, new_seq_lens = self._slots(batch), batch.seq_lens + 1
        if on_publish is not None:
            # A round knows its lengths after the forward, a plain step before it. Published now,
            # the next iteration's preparation need not queue behind this forward.
            on_publish(new_seq_lens)
        self._forget_reads()
        native = contextlib.nullcontext() if self._graphs is None else self._graphs.active()
        with native, stripped(batch, slots, new_seq_lens):
            forward_batch = ForwardBatch.init_new(
                batch,
                runner,
                capture_hidden_mode=CaptureHiddenMode.FULL,
                return_hidden_states_before_norm=False,
            )
            forwarded = self._target.forward_batch_generation(
                batch=None, forward_batch=forward_batch, is_verify=True
            )
        if self._graphs is not None:
            self._graphs.count(forwarded.can_run_cuda_graph, len(batch.reqs))
        if batch.has_grammar and grammar_barrier is not None:
            # The previous result's tokens must reach the grammar before its mask is built.
            grammar_barrier()
        tokens = runner.sample(forwarded.logits_output, forward_batch).to(torch.int64)
        is_greedy = batch.sampling_info.is_all_greedy
        keep_sampled_tokens(get_parallel().tp_group, tokens, is_greedy)
        result = self._result(batch, draft_input, forward_batch, forwarded, tokens, new_seq_lens)
        return result, slots

    def _forget_reads(self) -> None:
        """An event of an earlier forward must not pass for this one's."""
        self._target.model_runner.shared_read_done_event = None
        self._worker.draft_worker.draft_runner.shared_read_done_event = None

    def publish_reads(self) -> None:
        """Tell the scheduler when this step has read the buffers that it shares.

        The scheduler fences its next write on the event of the draft runner, the last reader of a
        round. Where no draft forward has left one there, the target was the last reader. No event
        at all makes the scheduler wait for the whole forward.
        """
        if self.is_target_last_reader:
            draft_runner = self._worker.draft_worker.draft_runner
            draft_runner.shared_read_done_event = self._target.model_runner.shared_read_done_event
        self._target.model_runner.shared_read_done_event = None

    def _slots(self, batch: Any) -> torch.Tensor:
        """The first reserved KV slot of each request, int64 [batch]."""
        return assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self._worker.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            batch_size=len(batch.seq_lens),
            draft_token_num=1,
            device=batch.device,
        )

    def _result(
        self,
        batch: Any,
        draft_input: EagleDraftInput,
        forward_batch: Any,
        forwarded: Any,
        tokens: torch.Tensor,
        new_seq_lens: torch.Tensor,
    ) -> Any:
        logits_output = forwarded.logits_output
        if batch.return_logprob:
            # A round reports a row of log probabilities per request.
            logits_output.next_token_logprobs = logits_output.next_token_logprobs.view(-1, 1)
        result = GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=tokens,
            can_run_cuda_graph=forwarded.can_run_cuda_graph,
            speculative_num_draft_tokens=1,
            accept_lens=self._accept_lens(len(tokens)),
            new_seq_lens=new_seq_lens,
            next_draft_input=_next_draft_input(batch, draft_input, tokens),
            routed_experts_output=forwarded.routed_experts_output,
            indexer_topk_output=forwarded.indexer_topk_output,
            extra_keep_alive_refs=[forward_batch],
        )
        setattr(result, PLAIN_RESULT, True)
        return result

    def _accept_lens(self, size: int) -> torch.Tensor:
        """int32 ones [size], a view of one buffer: nothing writes to it."""
        if len(self._ones) < size:
            self._ones = torch.ones(size, dtype=torch.int32, device=self._worker.device)
        return self._ones[:size]


def _next_draft_input(
    batch: Any, draft_input: EagleDraftInput, tokens: torch.Tensor
) -> EagleDraftInput:
    """The draft state is not moved by a plain step; only the pending token is new.

    With overlap it stays in the relay's buffers, which keep what a payload leaves out.
    """
    if batch.enable_overlap:
        return EagleDraftInput(bonus_tokens=tokens)
    return EagleDraftInput(
        topk_p=draft_input.topk_p,
        topk_index=draft_input.topk_index,
        hidden_states=draft_input.hidden_states,
        bonus_tokens=tokens,
    )
