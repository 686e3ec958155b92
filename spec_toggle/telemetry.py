"""What a server reports of the toggle: log lines and Prometheus series, from rank 0 alone.

Nothing here decides, so its clock may differ from every other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from spec_toggle.collapse import AcceptanceWatch
from spec_toggle.load import LoadSample
from spec_toggle.policy import Decision, Mode
from spec_toggle.switch_log import SwitchLog

if TYPE_CHECKING:
    from spec_toggle.metrics import ToggleMetrics

logger = logging.getLogger(__name__)

# An idle scheduler ticks thousands of times a second.
SECONDS_STEP_S = 0.5


class Telemetry:
    """``metrics``: None without --enable-metrics; log lines are written all the same."""

    def __init__(
        self, metrics: ToggleMetrics | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self._since = clock()
        self._switch_log = SwitchLog()
        self._acceptance = AcceptanceWatch()

    def tick(self, mode: Mode) -> None:
        """Once per scheduler iteration, before it is decided. ``mode``: in force until now."""
        now = self._clock()
        self._switch_log.tick(now)
        if now - self._since >= SECONDS_STEP_S:
            self._count_seconds(mode, now)

    def switch(self, before: Mode, decision: Decision, sample: LoadSample) -> None:
        now = self._clock()
        self._count_seconds(before, now)
        self._switch_log.write(
            f"{before.name} -> {decision.mode.name} ({decision.reason}; "
            f"batch size {sample.batch_size}, queue {sample.queue_length})",
            now,
        )
        if self.metrics is not None:
            self.metrics.switch(decision.mode, decision.cause)

    def iteration(self, mode: Mode) -> None:
        if self.metrics is not None:
            self.metrics.iteration(mode)

    def tokens(self, mode: Mode, count: int) -> None:
        if self.metrics is not None:
            self.metrics.tokens(mode, count)

    def round(self, age: int | None, requests: int, tokens: int) -> None:
        """Results of one round: ``tokens``, bonus tokens included, of its live ``requests``."""
        if self.metrics is not None:
            self.metrics.round(age, requests, tokens)
        if not self._acceptance.observe(requests, tokens):
            return
        if self._acceptance.is_first_notice:
            logger.warning(
                "Dynamic speculation: accept length 1.00 for %d rounds in a row: every draft token "
                "is refused, so rounds cost time and gain nothing. Check that the draft model "
                "belongs to this target; until then `spec-toggle force plain` avoids them.",
                self._acceptance.refused_rounds,
            )
        if self.metrics is not None:
            self.metrics.collapse()

    def steered(self, change: str, forced: Mode | None, boundary: float | None) -> None:
        logger.info("Dynamic speculation: steered by an operator: %s", change)
        self.boundary(boundary)
        if self.metrics is not None:
            self.metrics.force(forced)

    def draft_sync_backlog(self, tokens: int) -> None:
        if self.metrics is not None:
            self.metrics.draft_sync_backlog(tokens)

    def draft_sync_flush(self, elapsed_s: float) -> None:
        if self.metrics is not None:
            self.metrics.draft_sync_flush(elapsed_s)

    def probe_iteration(self) -> None:
        if self.metrics is not None:
            self.metrics.probe_round()

    def gain(self, ratio: float | None) -> None:
        if self.metrics is not None and ratio is not None:
            self.metrics.estimated_gain(ratio)

    def boundary(self, requests: float | None) -> None:
        if self.metrics is not None and requests is not None:
            self.metrics.boundary(requests)

    def _count_seconds(self, mode: Mode, now: float) -> None:
        if self.metrics is not None:
            self.metrics.seconds(mode, now - self._since)
        self._since = now
