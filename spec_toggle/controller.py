"""The per-iteration decision of one scheduler process, and what it has decided so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_toggle.config import DynamicSpecConfig
from spec_toggle.goodput import GoodputPolicy
from spec_toggle.live_costs import Observations
from spec_toggle.load import LoadSample
from spec_toggle.policy import Mode, Policy, ThresholdPolicy

if TYPE_CHECKING:
    from spec_toggle.metrics import ToggleMetrics

logger = logging.getLogger(__name__)


@dataclass
class Totals:
    """Counters since start: iterations and tokens by mode, and switches."""

    plain_steps: int = 0
    rounds: int = 0
    plain_tokens: int = 0
    spec_tokens: int = 0
    switches: int = 0


class Controller:
    """Asks the policy once per decode iteration and reports each change of mode."""

    def __init__(
        self,
        policy: Policy,
        metrics: ToggleMetrics | None = None,
        observations: Observations | None = None,
    ) -> None:
        self.policy = policy
        # Set with a policy that decides from results.
        self.observations = observations
        self.mode = Mode.SPEC
        self.totals = Totals()
        self._metrics = metrics

    @classmethod
    def from_config(
        cls,
        config: DynamicSpecConfig,
        metrics: ToggleMetrics | None = None,
        observations: Observations | None = None,
    ) -> Controller:
        """``observations``: given if and only if the policy is ``auto``."""
        if observations is None:
            policy: Policy = ThresholdPolicy(config.threshold, config.resume_at, config.dwell)
        else:
            policy = GoodputPolicy(observations, config.margin, config.dwell)
        return cls(policy, metrics, observations)

    def begin_iteration(self, sample: LoadSample) -> Mode:
        """Decide the mode of the decode iteration that is about to run."""
        if self.observations is not None:
            self.observations.costs.begin_iteration(sample.context_per_request)
        self._decide(sample)
        if self.mode is Mode.PLAIN:
            self.totals.plain_steps += 1
        else:
            self.totals.rounds += 1
        if self._metrics is not None:
            self._metrics.iteration(self.mode)
        return self.mode

    def idle(self) -> None:
        self._decide(LoadSample(batch_size=0))

    def count_tokens(self, mode: Mode, tokens: int) -> None:
        if mode is Mode.PLAIN:
            self.totals.plain_tokens += tokens
        else:
            self.totals.spec_tokens += tokens
        if self._metrics is not None:
            self._metrics.tokens(mode, tokens)

    def _decide(self, sample: LoadSample) -> None:
        decision = self.policy.decide(sample)
        if decision.mode is self.mode:
            return
        logger.info(
            "Dynamic speculation: %s -> %s (%s; batch size %d, queue %d)",
            self.mode.name,
            decision.mode.name,
            decision.reason,
            sample.batch_size,
            sample.queue_length,
        )
        self.mode = decision.mode
        self.totals.switches += 1
        if self._metrics is not None:
            self._metrics.switch(self.mode)
