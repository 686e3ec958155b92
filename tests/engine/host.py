"""Building and driving the scheduler of either generation of the host in the test process."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections import deque
from collections.abc import Callable
from typing import Any


@functools.cache  # it parses a file of SGLang's, and is asked for every request
def has_worker_batch() -> bool:
    """Whether the installed SGLang is of the ``ModelWorkerBatch`` generation (0.5.12)."""
    from spec_toggle.contract import WORKER_BATCH
    from spec_toggle.source import installed_source

    return importlib.util.find_spec("sglang") is not None and WORKER_BATCH.holds(installed_source())


def make_scheduler(server_args: Any) -> Any:
    """A scheduler of rank 0 whose answers go nowhere."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.server_args import PortArgs

    if has_worker_batch():
        server_args.check_server_args()
        ranks = dict.fromkeys(
            ("gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank"), 0
        )
        scheduler = Scheduler(server_args, PortArgs.init_new(server_args), **ranks, dp_rank=None)
        channels = scheduler
        # Made when the loop starts, but asked for by a flush before that.
        scheduler.result_queue = deque()
    else:
        from sglang.srt.runtime_context import SpawnRanks, publish

        server_args.resolve_once()
        server_args.check_server_args()
        publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        scheduler = Scheduler(server_args, PortArgs.init_new(server_args))
        channels = scheduler.ipc_channels
    channels.send_to_detokenizer.send_output = lambda *_, **__: None
    channels.send_to_tokenizer.send_output = lambda *_, **__: None
    return scheduler


class _Drained(Exception):
    """Ends an event loop that has no end of its own."""


def run_event_loop(scheduler: Any, ingest: Callable[..., list[Any]]) -> None:
    """The scheduler's own loop, which asks ``ingest`` for requests, until it sets
    ``scheduler.gracefully_exit``."""
    scheduler.gracefully_exit = False
    if not has_worker_batch():
        scheduler.ingest_requests = ingest
        scheduler.run_event_loop()
        return

    def receive() -> list[Any]:
        if scheduler.gracefully_exit:
            raise _Drained
        return ingest()

    scheduler.recv_requests = receive
    with contextlib.suppress(_Drained):
        scheduler.run_event_loop()


def draft_of(worker: Any) -> Any:
    """The worker without overlap of 0.5.12 is the draft's own."""
    return getattr(worker, "draft_worker", worker)


def draft_runner_of(worker: Any) -> Any:
    draft = draft_of(worker)
    return draft.draft_model_runner if draft is worker else draft.draft_runner


def reporter_of(scheduler: Any) -> Any:
    """What counts the rounds of a logging interval."""
    return getattr(scheduler, "metrics_reporter", scheduler)


def updater_of(scheduler: Any) -> Any:
    """What releases memory."""
    return getattr(scheduler, "weight_updater", scheduler)
