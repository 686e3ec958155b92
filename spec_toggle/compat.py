"""The few dealings with the host that several modules share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def draft_contexts(worker: Any) -> Iterator[None]:
    """The process groups and MoE backends that upstream enters around every draft forward.

    Source: ``EAGLEWorkerV2.forward_batch_generation``.
    """
    from sglang.srt.layers.moe.utils import (
        speculative_moe_a2a_backend_context,
        speculative_moe_backend_context,
    )
    from sglang.srt.speculative.spec_utils import draft_tp_context

    with (
        draft_tp_context(worker.draft_worker.parallel_layout),
        speculative_moe_backend_context(),
        speculative_moe_a2a_backend_context(),
    ):
        yield


@contextlib.contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of ``target`` for the duration of the block; restore them always."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
