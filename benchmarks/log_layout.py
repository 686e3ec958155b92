"""Two layouts of the deferred sync's log, timed on a loaded draft.

``raw`` logs the target's three hidden states as they are (3 x hidden); ``projected`` logs them
after the draft's ``fc`` (1 x hidden), which then runs at every plain step and not at the flush.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

LAYOUTS = ("raw", "projected")
SCHEMA = (
    "arms.layout.<layout>: flush_us: one write of a full log; append_us.<batch>: one plain step; "
    "us_per_token.<batch>: a token's share of both; log_gb: GiB of a full log"
)


def compare(worker: Any, batches: Sequence[int], flush_tokens: int) -> dict[str, Any]:
    """Times of each layout in us, and its log's size: see ``SCHEMA``.

    ``worker``: a toggle's EAGLE worker, idle; the draft's KV is overwritten.
    """
    import torch

    from spec_toggle.draft_kv import DraftKvWriter
    from spec_toggle.pending_log import Entries

    runner = worker.draft_worker.draft_runner
    weight = runner.model.model.fc.weight
    states = torch.randn((flush_tokens, weight.shape[1]), dtype=weight.dtype, device=worker.device)
    index = torch.arange(flush_tokens, device=worker.device)
    writer = DraftKvWriter(worker)
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for layout, project in zip(
            LAYOUTS, (lambda rows: rows, runner.model.model.fc), strict=True
        ):
            log = torch.empty_like(project(states))

            def flush(log: Any = log) -> None:
                writer.write(Entries(log, index % 100, index + 1, index % 100))

            def append(size: int, log: Any = log, project: Any = project) -> None:
                log[:size].copy_(project(states[:size]))

            found[layout] = _measure(flush, append, batches, flush_tokens, worker.device)
            found[layout]["log_gb"] = log.nbytes / 2**30
    return found


def _measure(
    flush: Callable[[], None],
    append: Callable[[int], None],
    batches: Sequence[int],
    flush_tokens: int,
    device: str,
) -> dict[str, Any]:
    flush_us = _time_us(flush, device)
    append_us = {n: _time_us(functools.partial(append, n), device) for n in batches}
    return {
        "flush_us": flush_us,
        "append_us": {str(n): value for n, value in append_us.items()},
        "us_per_token": {
            str(n): value / n + flush_us / flush_tokens for n, value in append_us.items()
        },
    }


def _time_us(run: Callable[[], Any], device: str, count: int = 50) -> float:
    """Time of one ``run`` among many, us: what the device takes, or the host if that is longer."""
    import torch

    synchronize = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    for _ in range(5):
        run()
    synchronize()
    start = time.perf_counter()
    for _ in range(count):
        run()
    synchronize()
    return 1e6 * (time.perf_counter() - start) / count
