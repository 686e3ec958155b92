"""Steering inside the scheduler: SGLang's internal-state request, extended by the toggle's keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from spec_toggle.args import ATTRIBUTE, FROM_CLI
from spec_toggle.compat import build
from spec_toggle.config import ConfigError
from spec_toggle.state import KEY, describe
from spec_toggle.steering import PREFIX, Order

logger = logging.getLogger(__name__)


def set_internal_state(original: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
    """Runs on every tensor-parallel rank with the same request, between the same iterations."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    toggle = getattr(scheduler.model_worker, "_dynamic_spec", None)
    ours = [key for key in recv_req.server_args if key.startswith(PREFIX)]
    if toggle is None or not ours:
        return original(scheduler, recv_req)
    try:
        if len(ours) < len(recv_req.server_args):
            raise ConfigError("settings of SGLang and of the toggle came in one request. Send two.")
        order = Order.from_wire(recv_req.server_args)
        toggle.controller.steer(order)
        if "draft_sync" in order.settings:
            toggle.change_draft_sync(order.settings["draft_sync"])
    except ConfigError as error:
        logger.warning("Dynamic speculation: steering refused: %s", error)
        return build(SetInternalStateReqOutput, updated=False, server_args={})
    return build(SetInternalStateReqOutput, updated=True, server_args={})


def get_internal_state(result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
    toggle = getattr(scheduler.model_worker, "_dynamic_spec", None)
    if toggle is not None:
        # 0.5.12 reports every attribute of its server arguments, ours too.
        result.internal_state.pop(ATTRIBUTE, None)
        result.internal_state.pop(FROM_CLI, None)
        result.internal_state[KEY] = describe(toggle.controller)
