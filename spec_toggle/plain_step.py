"""One ordinary decode iteration on a speculative server: strip, forward, restore, report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from spec_toggle.accounting import PLAIN_RESULT
from spec_toggle.compat import has_field, replaced
from spec_toggle.compat.batch import forward_batch, next_slots
from spec_toggle.compat.draft import draft_runner_of
from spec_toggle.compat.parallel import tensor_parallel_group
from spec_toggle.decode_graphs import DecodeGraphs
from spec_toggle.ranks import keep_sampled_tokens

# Where the next draft input carries lengths, an event in it says that they are known.
RELAYS_LENGTHS = not has_field(GenerationBatchResult, "new_seq_lens")


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
        self._target = worker.target_worker
        self._graphs = graphs
        self._ones = torch.empty(0, dtype=torch.int32)

    def run(
        self,
        batch: Any,
        on_publish: Callable[[torch.Tensor], None] | None = None,
        grammar_barrier: Callable[[], None] | None = None,
    ) -> tuple[Any, torch.Tensor]:
        """Forward the target natively and sample; return the result and the KV slots written.

        ``batch``: what the worker is given, in decode mode with an ``EagleDraftInput``; unchanged
        on return. The result reads like a round that accepted no draft: ``next_token_ids`` int64
        [batch] with stride 1, ``accept_lens`` int32 ones, ``logits_output.hidden_states``
        [batch, aux width], and the draft input of the batch with the new bonus tokens. Slots: int64
        [batch].
        """
        slots = next_slots(batch, self._worker.req_to_token_pool.req_to_token)
        new_seq_lens = batch.seq_lens + 1
        next_draft_input = _next_draft_input(batch, new_seq_lens)
        if on_publish is not None:
            # A round knows its lengths after the forward, a plain step before it. Published now,
            # the next iteration's preparation need not queue behind this forward.
            on_publish(new_seq_lens)
        self._forget_reads()
        inputs, forwarded = self._forward(batch, slots, new_seq_lens)
        if batch.has_grammar and grammar_barrier is not None:
            # The previous result's tokens must reach the grammar before its mask is built.
            grammar_barrier()
        tokens = self._target.model_runner.sample(forwarded.logits_output, inputs).to(torch.int64)
        keep_sampled_tokens(tensor_parallel_group(), tokens, batch.sampling_info.is_all_greedy)
        next_draft_input.bonus_tokens = tokens
        result = self._result(batch, forwarded, tokens)
        result.next_draft_input = next_draft_input
        if not RELAYS_LENGTHS:
            result.new_seq_lens, result.extra_keep_alive_refs = new_seq_lens, [inputs]
        return result, slots

    def _forward(
        self, batch: Any, slots: torch.Tensor, new_seq_lens: torch.Tensor
    ) -> tuple[Any, Any]:
        """The ``ForwardBatch``, and the target's result."""
        native = contextlib.nullcontext() if self._graphs is None else self._graphs.active()
        with native, stripped(batch, slots, new_seq_lens):
            inputs = forward_batch(batch, self._target.model_runner, CaptureHiddenMode.FULL)
            # No batch beside it.
            forwarded = self._target.forward_batch_generation(None, inputs, is_verify=True)
        if self._graphs is not None:
            self._graphs.count(forwarded.can_run_cuda_graph, len(batch.reqs))
        return inputs, forwarded

    @staticmethod
    def before(batch: Any) -> contextlib.AbstractContextManager[None]:
        """``batch`` with the lengths before the step, inside the block: those that it has."""
        del batch
        return contextlib.nullcontext()

    def _forget_reads(self) -> None:
        """An event of an earlier forward must not pass for this one's."""
        for runner in (self._target.model_runner, draft_runner_of(self._worker)):
            if hasattr(runner, "shared_read_done_event"):
                runner.shared_read_done_event = None

    def finish(self, batch: Any, result: Any, is_target_last_reader: bool) -> None:
        """Tell the scheduler when this step has read the buffers that it shares.

        The scheduler fences its next write on the event of the draft runner, the last reader of a
        round. Where no draft forward has left one there, the target was the last reader. No event
        at all makes the scheduler wait for the whole forward. Releases before 0.5.18 have none.
        """
        del batch, result
        target = self._target.model_runner
        if not hasattr(target, "shared_read_done_event"):
            return
        if is_target_last_reader:
            draft_runner_of(self._worker).shared_read_done_event = target.shared_read_done_event
        target.shared_read_done_event = None

    def _result(self, batch: Any, forwarded: Any, tokens: torch.Tensor) -> Any:
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
            routed_experts_output=forwarded.routed_experts_output,
            indexer_topk_output=forwarded.indexer_topk_output,
        )
        setattr(result, PLAIN_RESULT, True)
        return result

    def _accept_lens(self, size: int) -> torch.Tensor:
        """int32 ones [size], a view of one buffer: nothing writes to it."""
        if len(self._ones) < size:
            self._ones = torch.ones(size, dtype=torch.int32, device=self._worker.device)
        return self._ones[:size]


def _next_draft_input(batch: Any, new_seq_lens: torch.Tensor) -> EagleDraftInput:
    """The draft state is not moved by a plain step; only the pending token, still to come, is new.

    With overlap it stays in the relay's buffers, which from 0.5.23 on keep what a payload leaves
    out. Where the draft input relays lengths too, the scheduler waits for its event before it
    uses them; recorded here, before the forward, it does not wait for this step.
    """
    if not RELAYS_LENGTHS and batch.enable_overlap:
        return EagleDraftInput()
    before = batch.spec_info
    state = EagleDraftInput(
        topk_p=before.topk_p, topk_index=before.topk_index, hidden_states=before.hidden_states
    )
    if RELAYS_LENGTHS:
        device = torch.get_device_module(new_seq_lens.device)
        state.new_seq_lens, state.verify_done = new_seq_lens, device.Event()
        state.verify_done.record()
    return state
