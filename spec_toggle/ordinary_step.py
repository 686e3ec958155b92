"""A plain step of the worker without overlap of 0.5.12: the host's own ordinary iteration.

That worker allocates KV inside a round, so a speculative batch has no slots reserved. After a round
the KV of what was accepted is compact and nothing more is allocated, which is the state of an
ordinary decode batch. So the host's ordinary path runs, around three of its calls: preparing the
batch, forwarding it, and processing the result. Outside of them the batch is a speculative one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from spec_toggle.accounting import PLAIN_RESULT
from spec_toggle.compat import replaced
from spec_toggle.compat.batch import forwardable, one_token_shorter
from spec_toggle.compat.parallel import tensor_parallel_group
from spec_toggle.decode_graphs import DecodeGraphs
from spec_toggle.ranks import keep_sampled_tokens


class OrdinaryStep:
    """Decodes one token per request as a server without speculation does."""

    def __init__(self, worker: Any, graphs: DecodeGraphs | None) -> None:
        self._target = worker.target_worker
        self._graphs = graphs

    @staticmethod
    def prepare(original: Callable[[Any], None], batch: Any) -> None:
        """``ScheduleBatch.prepare_for_decode`` before a plain step.

        Allocates a slot per request, and counts the pending token in all lengths.
        """
        # A round leaves every accepted token, flat, and a sum of lengths from before it.
        pending, total = batch.spec_info.bonus_tokens, int(batch.seq_lens_cpu.sum())
        with replaced(batch, spec_info=None, spec_algorithm=SpeculativeAlgorithm.NONE):
            batch.output_ids, batch.seq_lens_sum = pending, total
            original(batch)

    def run(self, batch: Any, *_: Any) -> tuple[Any, torch.Tensor]:
        """Forward the target natively and sample; return the result and the KV slots written.

        ``batch``: a prepared ``ScheduleBatch``, unchanged on return. The result is that of an
        ordinary decode iteration, with aux hidden states, and with the draft input of the batch
        with the new pending tokens. Slots: int64 [batch].
        """
        worker_batch = forwardable(batch)
        native = contextlib.nullcontext() if self._graphs is None else self._graphs.active()
        with (
            native,
            replaced(
                worker_batch,
                spec_info=None,
                spec_algorithm=SpeculativeAlgorithm.NONE,
                capture_hidden_mode=CaptureHiddenMode.FULL,
            ),
        ):
            done = self._target.forward_batch_generation(worker_batch)
        if self._graphs is not None:
            self._graphs.count(done.can_run_cuda_graph, len(batch.reqs))
        is_greedy = batch.sampling_info.is_all_greedy
        keep_sampled_tokens(tensor_parallel_group(), done.next_token_ids, is_greedy)
        before = batch.spec_info
        done.next_draft_input = EagleDraftInput(
            topk_p=before.topk_p,
            topk_index=before.topk_index,
            hidden_states=before.hidden_states,
            bonus_tokens=done.next_token_ids.to(torch.int32),
            capture_hidden_mode=CaptureHiddenMode.LAST,
        )
        setattr(done, PLAIN_RESULT, True)
        return done, batch.out_cache_loc

    @staticmethod
    def before(batch: Any) -> contextlib.AbstractContextManager[None]:
        """``batch`` with the lengths before the step, inside the block; preparing raised them."""
        return one_token_shorter(batch)

    @staticmethod
    def finish(batch: Any, done: Any, is_target_last_reader: bool) -> None:
        """Leave the batch with the state that its next iteration starts from."""
        del is_target_last_reader  # without overlap nothing is shared with a forward that runs
        batch.spec_info = done.next_draft_input

    @staticmethod
    def process(original: Callable[[Any, Any], None], batch: Any, done: Any) -> None:
        """``process_batch_result_decode`` as without speculation.

        A round leaves draft state for unfinished requests only, and the next filter of the batch
        relies on it: it cuts the state to the number of requests that are left.
        """
        with replaced(batch, spec_algorithm=SpeculativeAlgorithm.NONE):
            original(batch, done)
        kept = [index for index, req in enumerate(batch.reqs) if not req.finished()]
        if len(kept) < len(batch.reqs):
            index = torch.tensor(kept, dtype=torch.int64, device=batch.seq_lens.device)
            batch.spec_info.filter_batch(index, has_been_filtered=False)
