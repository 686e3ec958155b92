"""The load that a prefill leads to."""

from __future__ import annotations

from typing import Any

from spec_toggle.load import LoadSample


def load_after(scheduler: Any, batch: Any) -> LoadSample:
    """The load of the decode iteration after the prefill ``batch``; equal on every rank.

    SGLang admits whom it can before it decodes again, so those who wait count. What they will be
    like is not looked at: their contexts are taken for those of the others.
    """
    requests = [*scheduler.running_batch.reqs, *batch.reqs]
    expected = len(requests) + len(scheduler.waiting_queue)
    size = min(expected, scheduler.max_running_requests)
    tokens = sum(len(req.origin_input_ids) + len(req.output_ids) for req in requests)
    return LoadSample(size, context_tokens=tokens * size // len(requests))
