"""The per-iteration decision of one scheduler process, and what it has decided so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spec_toggle.config import DynamicSpecConfig
from spec_toggle.goodput import GoodputPolicy
from spec_toggle.live_costs import Observations
from spec_toggle.load import LoadSample
from spec_toggle.policy import PROBE, Mode, Policy, ThresholdPolicy
from spec_toggle.steering import Order, Steering
from spec_toggle.telemetry import Telemetry


@dataclass
class Totals:
    """Counters since start.

    ``verifications``: one per request and round; ``verified_tokens``: what they gave, bonus tokens
    included. Their ratio is the accept length.
    """

    plain_steps: int = 0
    rounds: int = 0
    plain_tokens: int = 0
    spec_tokens: int = 0
    switches: int = 0
    verifications: int = 0
    verified_tokens: int = 0


def make_policy(config: DynamicSpecConfig, observations: Observations | None) -> Policy:
    if observations is None:
        return ThresholdPolicy(config.threshold, config.resume_at, config.dwell)
    return GoodputPolicy(observations, config.margin, config.dwell)


class Controller:
    """Asks the policy once per decode iteration and reports each change of mode.

    ``telemetry``: on the one rank that reports for its server, None on the others.
    ``observations``: of results, for a policy that decides from them.
    """

    def __init__(
        self,
        policy: Policy,
        config: DynamicSpecConfig,
        telemetry: Telemetry | None = None,
        observations: Observations | None = None,
    ) -> None:
        self.policy = policy
        self.steering = Steering(config)
        self.telemetry = telemetry
        self.observations = observations
        # Set where a change to the policy ``auto`` is possible.
        self.make_observations: Callable[[], Observations] | None = None
        self.mode = Mode.SPEC
        self.reason = "start"
        self.sample = LoadSample(batch_size=0)
        self.totals = Totals()
        # Rounds since SPEC last returned; None before the first return.
        self.rounds_since_resume: int | None = None
        if telemetry is not None:
            telemetry.boundary(policy.boundary)

    @classmethod
    def from_config(
        cls,
        config: DynamicSpecConfig,
        telemetry: Telemetry | None = None,
        observations: Observations | None = None,
    ) -> Controller:
        """``observations``: given if and only if the policy is ``auto``."""
        return cls(make_policy(config, observations), config, telemetry, observations)

    def begin_iteration(self, sample: LoadSample) -> Mode:
        """Decide the mode of the decode iteration that is about to run."""
        if self.observations is not None:
            costs = self.observations.costs
            costs.begin_iteration(self.mode, sample.batch_size, sample.context_per_request)
        self._decide(sample)
        if self.mode is Mode.PLAIN:
            self.totals.plain_steps += 1
        else:
            self.totals.rounds += 1
            if self.rounds_since_resume is not None:
                self.rounds_since_resume += 1
        if self.telemetry is not None:
            self.telemetry.iteration(self.mode)
        return self.mode

    def expects_plain(self, sample: LoadSample) -> bool:
        """Whether plain steps follow a prefill that leads to the load ``sample``.

        A guess that decides who computes what the draft needs, and never what it is.
        """
        if self.steering.force is not None:
            return self.steering.force.mode is Mode.PLAIN
        return self.mode is Mode.PLAIN or self.policy.expects_plain(sample)

    def idle(self) -> None:
        self._decide(LoadSample(batch_size=0))

    def steer(self, order: Order) -> None:
        """Change what an operator asks for. Raises ConfigError, and then changes nothing."""
        before = self.steering.config
        change = self.steering.apply(order)
        config = self.steering.config
        if config.policy != before.policy:
            self._change_policy(config)
        elif order.settings:
            self.policy.configure(config)
        if self.telemetry is not None and change:
            force = self.steering.force
            forced = None if force is None else force.mode
            self.telemetry.steered(change, forced, self.policy.boundary)

    def _change_policy(self, config: DynamicSpecConfig) -> None:
        """The new policy begins in SPEC, and without what another one has learned."""
        self.observations = None
        if config.policy == "auto" and self.make_observations is not None:
            self.observations = self.make_observations()
        self.policy = make_policy(config, self.observations)

    def count_tokens(self, mode: Mode, tokens: int) -> None:
        if mode is Mode.PLAIN:
            self.totals.plain_tokens += tokens
        else:
            self.totals.spec_tokens += tokens
        if self.telemetry is not None:
            self.telemetry.tokens(mode, tokens)

    def count_round(self, age: int | None, requests: int, tokens: int) -> None:
        """``age``: ``rounds_since_resume`` when the round ran; its result is counted later."""
        self.totals.verifications += requests
        self.totals.verified_tokens += tokens
        if self.telemetry is not None:
            self.telemetry.round(age, requests, tokens)

    def _decide(self, sample: LoadSample) -> None:
        self.sample = sample
        if self.telemetry is not None:
            self.telemetry.tick(self.mode)
        if self.steering.force is not None:
            sample = replace(sample, is_forced=True)
        decision = self.steering.override(self.policy.decide(sample))
        if self.telemetry is not None and decision.cause == PROBE:
            self.telemetry.probe_iteration()
        if decision.mode is self.mode:
            return
        if self.telemetry is not None:
            self.telemetry.switch(self.mode, decision, sample)
            self.telemetry.boundary(self.policy.boundary)
            self.telemetry.gain(decision.gain)
        self.mode = decision.mode
        self.reason = decision.reason
        self.totals.switches += 1
        if self.mode is Mode.SPEC:
            self.rounds_since_resume = 0
