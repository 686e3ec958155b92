"""What a scheduler says of its toggle when an operator asks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spec_toggle.controller import Controller

# Under this key in SGLang's internal state, and so in ``/server_info`` too.
KEY = "dynamic_spec"


def describe(controller: Controller) -> dict[str, Any]:
    """Plain values only. ``force.until``: unix seconds; ``totals``: since the server's start."""
    force = controller.steering.force
    config = controller.steering.config
    return {
        "mode": controller.mode.value,
        "reason": controller.reason,
        "batch_size": controller.sample.batch_size,
        "queue_length": controller.sample.queue_length,
        "boundary": controller.policy.boundary,
        "force": None if force is None else {"mode": force.mode.value, "until": force.until},
        "config": dataclasses.asdict(config),
        "draft_syncs": list(controller.steering.draft_syncs),
        "totals": dataclasses.asdict(controller.totals),
    }
