"""The EAGLE worker wrapper: routes each decode batch to upstream's round or to the plain step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec_toggle.controller import Controller
from spec_toggle.decode_graphs import DecodeGraphs
from spec_toggle.draft_sync import DraftSync, EagerSync
from spec_toggle.host_lengths import HostLengths
from spec_toggle.load import LoadSample
from spec_toggle.plain_step import PlainStep
from spec_toggle.policy import Mode


class DynamicSpecWorker:
    """Lives on one ``EAGLEWorkerV2``; its scheduler asks it before every iteration."""

    def __init__(
        self,
        worker: Any,
        controller: Controller,
        draft_sync: DraftSync,
        graphs: DecodeGraphs | None,
    ) -> None:
        self.controller = controller
        self.graphs = graphs
        # Set where the host would otherwise wait for each iteration's lengths.
        self.host_lengths: HostLengths | None = None
        # Set where ranks check, for tests, that they are about to run the same iteration.
        self.agree: Callable[[Any], None] | None = None
        if controller.telemetry is not None:
            draft_sync.on_flush = controller.telemetry.draft_sync_flush
        self._plain_step = PlainStep(worker, graphs)
        self._launched_sync = draft_sync
        self._eager_sync = EagerSync(worker)
        self._next_sync: str | None = None
        self._use(draft_sync)
        if isinstance(draft_sync, EagerSync):
            controller.steering.draft_syncs = ("eager",)

    def idle(self) -> None:
        self.draft_sync.idle()
        self.controller.idle()

    def change_draft_sync(self, kind: str) -> None:
        """From the next decode iteration on; ``kind`` is one of ``steering.draft_syncs``."""
        # Not now: the iteration in flight may still append to what is pending.
        self._next_sync = kind

    def _use(self, draft_sync: DraftSync) -> None:
        self.draft_sync = draft_sync
        self._plain_step.is_target_last_reader = not draft_sync.runs_after_plain_step

    def _hand_over(self, batch: Any, kind: str, is_plain: bool) -> None:
        """``eager`` leaves no draft state behind, so it must not find any to be made either."""
        self._next_sync = None
        if kind != "eager":
            self._launched_sync.fill(kind == "deferred")
            self._use(self._launched_sync)
            return
        if not is_plain:
            self.draft_sync.before_round(batch)
        self.draft_sync.finish()
        self._use(self._eager_sync)

    def begin_iteration(self, batch: Any, queue_length: int) -> None:
        """Decide the mode before the batch runs. Prefills are upstream's in either mode."""
        if batch.forward_mode.is_decode():
            self.controller.begin_iteration(self._sample(batch, queue_length))
            if self.agree is not None:
                self.agree(self._iteration(batch))

    def _iteration(self, batch: Any) -> tuple[Any, ...]:
        """All that decides how this iteration communicates, and what the next decisions rest on."""
        requests = [(req.rid, len(req.output_ids), *req.output_ids[-1:]) for req in batch.reqs]
        observations = self.controller.observations
        learnt = observations and (observations.costs.table, observations.accept.value)
        return self.controller.mode, self.draft_sync.pending, requests, learnt

    def _sample(self, batch: Any, queue_length: int) -> LoadSample:
        if self.controller.observations is None:
            return LoadSample(len(batch.reqs), queue_length)
        # Counted by the host when results are read: no wait for the device, equal on all ranks.
        context = sum(req.kv.kv_committed_len for req in batch.reqs)
        pool = batch.token_to_kv_pool_allocator.size
        # Shared prefixes count once per request, so this may say more than is held.
        return LoadSample(len(batch.reqs), queue_length, context, min(1.0, context / pool))

    def forward(
        self,
        original: Callable[..., Any],
        batch: Any,
        on_publish: Callable[[Any], None] | None = None,
        grammar_barrier: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> Any:
        """``EAGLEWorkerV2.forward_batch_generation`` of the wrapped worker."""
        is_plain = self.controller.mode is Mode.PLAIN
        if not batch.forward_mode.is_decode():
            with self.draft_sync.prefill(batch, is_plain):
                result = original(
                    batch, on_publish=on_publish, grammar_barrier=grammar_barrier, **kwargs
                )
            if self.host_lengths is not None:
                self.host_lengths.after_prefill(batch)
            return result
        if self._next_sync is not None:
            self._hand_over(batch, self._next_sync, is_plain)
        if is_plain:
            result, slots = self._plain_step.run(batch, on_publish, grammar_barrier)
            self.draft_sync.after_plain_step(batch, result, slots)
            if self.controller.telemetry is not None:
                self.controller.telemetry.draft_sync_backlog(self.draft_sync.pending)
            self._plain_step.publish_reads()
            if self.host_lengths is not None:
                self.host_lengths.after_plain_step(batch)
            return result
        self.draft_sync.before_round(batch)
        if self.host_lengths is not None:
            self.host_lengths.after_round(batch)
        return original(batch, on_publish=on_publish, grammar_barrier=grammar_barrier, **kwargs)
