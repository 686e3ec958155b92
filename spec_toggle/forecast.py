"""The load that a prefill leads to."""

from __future__ import annotations

from typing import Any

from spec_toggle.load import LoadSample


def load_after(scheduler: Any, batch: Any, size_before: int) -> LoadSample:
    """The load of the decode iteration after the prefill ``batch``; equal on every rank.

    ``size_before``: batch size of the last decode iteration. A server that has just run empty is
    likely to fill up again, and its clients arrive one after the other.

    SGLang admits whom it can before it decodes again, so those who wait count. What they will be
    like is not looked at: their contexts are taken for those of the others.
    """
    requests = [*scheduler.running_batch.reqs, *batch.reqs]
    known = len(requests) + len(scheduler.waiting_queue)
    size = min(max(known, size_before), scheduler.max_running_requests)
    tokens = sum(len(req.origin_input_ids) + len(req.output_ids) for req in requests)
    return LoadSample(size, context_tokens=tokens * size // max(1, len(requests)))
