"""The hook handlers: each adapts one of SGLang's calls to the toggle."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from spec_toggle import __version__, args, auto, ranks
from spec_toggle.accounting import ROUND_AGE, reporter_of
from spec_toggle.compat.launch import (
    are_decode_graphs_disabled,
    declare,
    older_release,
    resolved_settings,
    target_config,
)
from spec_toggle.config import ENVIRONMENT, ConfigError, DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.coverage import untested
from spec_toggle.forecast import load_after
from spec_toggle.host_lengths import HostLengths
from spec_toggle.policy import Mode
from spec_toggle.support import check_draft_sync, check_model, check_runner, check_support
from spec_toggle.telemetry import Telemetry

logger = logging.getLogger(__name__)


def config_from_environment() -> DynamicSpecConfig | None:
    text = os.environ.get(ENVIRONMENT)
    return DynamicSpecConfig.from_json(text) if text else None


def add_cli_args(result: None, parser: Any) -> None:
    del result
    args.add_flags(parser)


def from_cli_args(original: Callable[..., Any], cls: Any, namespace: Any) -> Any:
    from spec_toggle.install import enable_server

    return args.from_cli_args(original, enable_server, cls, namespace)


def check_server_args(result: None, server_args: Any) -> None:
    """Check the resolved settings, then hand the configuration to the processes to come."""
    del result
    os.environ.pop(ENVIRONMENT, None)
    config = getattr(server_args, args.ATTRIBUTE, None)
    if config is None:
        return
    try:
        settings = resolved_settings(server_args)
        check_support(settings)
        check_draft_sync(settings, config.draft_sync)
        check_model(target_config(server_args), settings.device)
    except ConfigError as error:
        if getattr(server_args, args.FROM_CLI, False):
            args.exit_with(error)
        raise
    os.environ[ENVIRONMENT] = config.to_json()
    if beyond := untested(settings, older_release()):
        warn_untested("; ".join(beyond))


@functools.cache
def warn_untested(beyond: str) -> None:
    """Once in a launch, which may check its settings more than once."""
    logger.warning(
        "Dynamic speculation: UNTESTED with these settings: %s. Before you rely on it, compare "
        "output and speed with a server without --enable-dynamic-spec.",
        beyond,
    )


def keep_max_running_requests(original: Callable[..., None], server_args: Any) -> None:
    """Speculation lowers an unset limit to 48; a toggle that is off at 64 must not stay there."""
    was_unset = resolved_settings(server_args).max_running_requests is None
    original(server_args)
    if was_unset and getattr(server_args, args.ATTRIBUTE, None) is not None:
        declare(server_args, max_running_requests=None)
        logger.info(args.LIMIT_STAYS)


def attach_toggle(result: None, scheduler: Any, *_: Any, **__: Any) -> None:
    """Give the scheduler's EAGLE worker its toggle, once all workers exist."""
    from spec_toggle.deferred_sync import CHECK_ENVIRONMENT
    from spec_toggle.worker import DynamicSpecWorker

    del result
    config = config_from_environment()
    if config is None:
        return
    is_checked = os.environ.get(CHECK_ENVIRONMENT) == "1"
    ranks.agree_on_configuration(scheduler, (__version__, config.to_json(), str(is_checked)))
    observations = auto.make_observations(scheduler) if config.policy == "auto" else None
    telemetry = _telemetry(reporter_of(scheduler))
    controller = Controller.from_config(config, telemetry, observations)
    controller.make_observations = functools.partial(auto.make_observations, scheduler)
    worker = scheduler.model_worker
    draft_sync, graphs = worker._dynamic_spec_parts
    toggle = DynamicSpecWorker(worker, controller, draft_sync, graphs)
    toggle.queue_length = lambda: len(scheduler.waiting_queue)
    toggle.load_after = functools.partial(load_after, scheduler)
    # The pool is how a batch of 0.5.12, which is prepared without its worker, finds the toggle.
    worker._dynamic_spec = worker.req_to_token_pool._dynamic_spec = toggle
    if scheduler.enable_overlap and getattr(scheduler.future_map, "needs_cpu_seq_lens", False):
        toggle.host_lengths = HostLengths(worker.req_to_token_pool.req_to_token.shape[0])
        scheduler.future_map._dynamic_spec_lengths = toggle.host_lengths
    if is_checked and scheduler.tp_group.world_size > 1:
        toggle.agree = functools.partial(ranks.agree, scheduler, "decode iteration")
    if observations is not None:
        auto.profile(scheduler, toggle, config)
    logger.info(
        "Dynamic speculation is on: %s; max_running_requests=%d",
        config.to_json(),
        scheduler.max_running_requests,
    )


def _telemetry(reporter: Any) -> Telemetry | None:
    """Of the rank that writes SGLang's statistics; None on the other tensor-parallel ranks."""
    if not reporter.is_stats_logging_rank:
        return None
    if getattr(reporter, "metrics_collector", None) is None:
        return Telemetry()
    from spec_toggle.metrics import ToggleMetrics

    return Telemetry(ToggleMetrics(dict(reporter.metrics_collector.labels)))


def allocate_parts(result: None, worker: Any, *_: Any, **__: Any) -> None:
    """Beside upstream's captures, so that memory sizing after them sees these buffers too."""
    from spec_toggle.decode_graphs import DecodeGraphs
    from spec_toggle.draft_sync import make_draft_sync

    del result
    config = config_from_environment()
    if config is None:
        return
    check_runner(worker.target_worker.model_runner)
    draft_sync = make_draft_sync(config, worker)  # first: it may refuse the draft
    is_disabled = are_decode_graphs_disabled(worker.server_args)
    has_graphs = worker.device.startswith("cuda") and not is_disabled
    worker._dynamic_spec_parts = draft_sync, DecodeGraphs(worker) if has_graphs else None


def run_batch(scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
    toggle = getattr(scheduler.model_worker, "_dynamic_spec", None)
    if toggle is not None:
        toggle.begin_iteration(batch)


def prepare_for_decode(original: Callable[..., None], batch: Any) -> None:
    toggle = getattr(batch.req_to_token_pool, "_dynamic_spec", None)
    if toggle is None:
        original(batch)
    else:
        toggle.prepare_for_decode(original, batch)


def on_idle(scheduler: Any) -> None:
    toggle = getattr(scheduler.model_worker, "_dynamic_spec", None)
    if toggle is not None:
        toggle.idle()


def release_memory(owner: Any, *_: Any, **__: Any) -> None:
    """Nothing may be pending once weights or KV are unmapped.

    ``owner``: of the EAGLE worker, the scheduler or its part that loads and unmaps weights.
    """
    toggle = getattr(owner.draft_worker, "_dynamic_spec", None)
    if toggle is not None:
        toggle.draft_sync.idle()


def forward_batch_generation(
    original: Callable[..., Any], worker: Any, batch: Any, *positional: Any, **kwargs: Any
) -> Any:
    toggle = getattr(worker, "_dynamic_spec", None)
    if toggle is None:
        return original(worker, batch, *positional, **kwargs)
    result = toggle.forward(functools.partial(original, worker), batch, *positional, **kwargs)
    if toggle.controller.mode is Mode.SPEC:
        setattr(result, ROUND_AGE, toggle.controller.rounds_since_resume)
    return result
