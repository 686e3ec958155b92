"""The EAGLE worker wrapper: routes each decode batch to upstream's round or to the plain step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec_toggle.compat.batch import committed_length
from spec_toggle.controller import Controller
from spec_toggle.decode_graphs import DecodeGraphs
from spec_toggle.draft_sync import DraftSync, EagerSync
from spec_toggle.host_lengths import HostLengths
from spec_toggle.load import LoadSample
from spec_toggle.ordinary_step import OrdinaryStep
from spec_toggle.plain_step import PlainStep
from spec_toggle.policy import Mode


class DynamicSpecWorker:
    """Lives on one EAGLE worker; its scheduler asks it before every iteration."""

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
        # Of the worker without overlap of 0.5.12, which has no draft worker beside it.
        self._ordinary = None if hasattr(worker, "draft_worker") else OrdinaryStep(worker, graphs)
        self._plain_step = self._ordinary or PlainStep(worker, graphs)
        # Requests that wait in the scheduler.
        self.queue_length: Callable[[], int] = lambda: 0
        # The load that a prefill leads to, after a decode iteration of a batch size; None: unknown.
        self.load_after: Callable[[Any, int], LoadSample] | None = None
        self._size_before = 0
        self.draft_sync = self._launched_sync = draft_sync
        self._eager_sync = EagerSync(worker)
        self._next_sync: str | None = None
        if isinstance(draft_sync, EagerSync):
            controller.steering.draft_syncs = ("eager",)

    def idle(self) -> None:
        self.draft_sync.idle()
        self.controller.idle()

    def change_draft_sync(self, kind: str) -> None:
        """From the next decode iteration on; ``kind`` is one of ``steering.draft_syncs``."""
        # Not now: the iteration in flight may still append to what is pending.
        self._next_sync = kind

    def _hand_over(self, batch: Any, kind: str, is_plain: bool) -> None:
        """``eager`` leaves no draft state behind, so it must not find any to be made either."""
        self._next_sync = None
        if kind != "eager":
            self._launched_sync.fill(kind == "deferred")
            self.draft_sync = self._launched_sync
            return
        if not is_plain:
            self.draft_sync.before_round(batch)
        self.draft_sync.finish()
        self.draft_sync = self._eager_sync

    def begin_iteration(self, batch: Any) -> None:
        """Decide the mode before the batch runs. Prefills are upstream's in either mode."""
        if self._ordinary is None and batch.forward_mode.is_decode():
            self._decide(batch)

    def prepare_for_decode(self, original: Callable[[Any], None], batch: Any) -> None:
        """``ScheduleBatch.prepare_for_decode``.

        KV slots of an ordinary step are allocated here, so its mode is decided here. The batch has
        its final size: finished and retracted requests have left it.
        """
        if self._ordinary is None:
            original(batch)
            return
        self._decide(batch)
        if self.controller.mode is Mode.PLAIN:
            self._ordinary.prepare(original, batch)
        else:
            original(batch)

    @property
    def runs_ordinary_steps(self) -> bool:
        """Whether the results of plain steps are those of ordinary decode iterations."""
        return self._ordinary is not None

    def process_plain_result(
        self, original: Callable[[Any, Any], None], batch: Any, result: Any
    ) -> None:
        """``process_batch_result_decode`` of an ordinary step."""
        assert self._ordinary is not None
        self._ordinary.process(original, batch, result)

    def _decide(self, batch: Any) -> None:
        self._size_before = len(batch.reqs)
        self.controller.begin_iteration(self._sample(batch))
        if self.agree is not None:
            self.agree(self._iteration(batch))

    def _iteration(self, batch: Any) -> tuple[Any, ...]:
        """All that decides how this iteration communicates, and what the next decisions rest on."""
        requests = [(req.rid, len(req.output_ids), *req.output_ids[-1:]) for req in batch.reqs]
        observations = self.controller.observations
        learnt = observations and (observations.costs.table, observations.accept.value)
        return self.controller.mode, self.draft_sync.pending, requests, learnt

    def _sample(self, batch: Any) -> LoadSample:
        queue_length = self.queue_length()
        if self.controller.observations is None:
            return LoadSample(len(batch.reqs), queue_length)
        # Counted by the host when results are read: no wait for the device, equal on all ranks.
        context = sum(map(committed_length, batch.reqs))
        pool = batch.token_to_kv_pool_allocator.size
        # Shared prefixes count once per request, so this may say more than is held.
        return LoadSample(len(batch.reqs), queue_length, context, min(1.0, context / pool))

    def forward(
        self, original: Callable[..., Any], batch: Any, *positional: Any, **callbacks: Any
    ) -> Any:
        """``forward_batch_generation`` of the wrapped worker.

        ``callbacks``: of the scheduler, on the releases whose worker calls them.
        """
        is_plain = self.controller.mode is Mode.PLAIN
        if not batch.forward_mode.is_decode():
            with self.draft_sync.prefill(batch, is_plain or self._leads_to_plain(batch)):
                result = original(batch, *positional, **callbacks)
            if self.host_lengths is not None:
                self.host_lengths.after_prefill(batch)
            return result
        if self._next_sync is not None:
            self._hand_over(batch, self._next_sync, is_plain)
        if is_plain:
            return self._forward_plain(batch, *positional, **callbacks)
        self.draft_sync.before_round(batch)
        if self.host_lengths is not None:
            self.host_lengths.after_round(batch)
        return original(batch, *positional, **callbacks)

    def _leads_to_plain(self, batch: Any) -> bool:
        """Whether plain steps follow this prefill, as they do when an idle server gets a burst."""
        if self.load_after is None:
            return False
        return self.controller.expects_plain(self.load_after(batch, self._size_before))

    def _forward_plain(
        self,
        batch: Any,
        on_publish: Callable[[Any], None] | None = None,
        grammar_barrier: Callable[[], None] | None = None,
        **_: Any,
    ) -> Any:
        sync = self.draft_sync
        result, slots = self._plain_step.run(batch, on_publish, grammar_barrier)
        with self._plain_step.before(batch):
            sync.after_plain_step(batch, result, slots)
        if self.controller.telemetry is not None:
            self.controller.telemetry.draft_sync_backlog(sync.pending)
        self._plain_step.finish(batch, result, not sync.runs_after_plain_step)
        if self.host_lengths is not None:
            self.host_lengths.after_plain_step(batch)
        return result
