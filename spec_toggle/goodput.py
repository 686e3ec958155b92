"""``auto``: speculate while rounds give more tokens per second than plain steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_toggle.acceptance import ProbeSchedule
from spec_toggle.live_costs import Observations
from spec_toggle.load import LoadSample
from spec_toggle.policy import PROBE, Decision, Mode

if TYPE_CHECKING:
    from spec_toggle.config import DynamicSpecConfig

# Rounds of one request below which an estimate is too old or too thin to leave PLAIN on.
TRUSTED_ROUNDS = 64
# What a switch to the other mode and back costs, in plain steps.
SWITCH_STEPS = 1
# By which factor times may be wrong: of rounds that were never measured, and of plain steps that
# were long ago.
DOUBT, OLD_DOUBT = 2.0, 1.25
# Share of the KV pool above which a switch back is considered twice as long.
KV_PRESSURE = 0.95
# Where the search for the boundary ends.
LARGEST_BATCH = 1024


@dataclass(frozen=True)
class Inputs:
    """What a gain is computed from."""

    batch_size: float
    context: float
    accept: float


@dataclass
class Probe:
    """A burst of ``mode``; ``is_for_cost``: to time it, not to see what is accepted."""

    mode: Mode
    left: int
    is_for_cost: bool


class GoodputPolicy:
    """SPEC while ``accept / T_round > 1 / T_plain``; back to SPEC only above ``1 + margin``.

    Going PLAIN is immediate. Coming back takes ``dwell`` iterations in a row, twice as many while
    requests wait or the KV pool is nearly full, because the batch may be about to change. In PLAIN
    nothing shows the accept length: an estimate that has become too old is renewed by a short
    probe, unless not even the acceptance of every draft would pay. A probe also times a mode that
    nobody has measured here, or for a while.

    ``observations``: what costs and acceptance are known to be now, equal on all ranks.
    """

    def __init__(
        self,
        observations: Observations,
        margin: float,
        dwell: int,
        probes: ProbeSchedule | None = None,
    ) -> None:
        self._costs = observations.costs
        self._accept = observations.accept
        self._max_accept = observations.max_accept
        self._margin = margin
        self._dwell = dwell
        self._probes = probes or ProbeSchedule()
        self._mode = Mode.SPEC
        self._high_steps = 0
        self._probe: Probe | None = None
        self._at_switch: Inputs | None = None
        self._last: Inputs | None = None

    def configure(self, config: DynamicSpecConfig) -> None:
        self._margin = config.margin
        self._dwell = config.dwell

    @property
    def boundary(self) -> float | None:
        """Largest batch size at which rounds pay, for the context and acceptance of the moment."""
        if self._last is None:
            return None
        low, high = 0, LARGEST_BATCH + 1
        while high - low > 1:
            middle = (low + high) // 2
            gain = self.gain(Inputs(middle, self._last.context, self._last.accept))
            low, high = (middle, high) if gain >= 1 else (low, middle)
        return low

    def expects_plain(self, sample: LoadSample) -> bool:
        return self.gain(self._inputs(sample)) < 1

    def decide(self, sample: LoadSample) -> Decision:
        if sample.batch_size == 0:
            return self._idle()
        inputs = self._inputs(sample)
        self._last = inputs
        if self._at_switch is None:
            self._at_switch = inputs
        if sample.is_forced:
            self._probe = None
            self._accept.age(self._ms(self._mode, inputs))
            return Decision(self._mode, "another mode may be forced")
        if self._probe is not None:
            return self._continue_probe(self._probe, inputs)
        ms = self._ms(self._mode, inputs)
        self._probes.wait(ms)
        if self._mode is Mode.SPEC:
            return self._decide_in_spec(inputs)
        self._accept.age(ms)
        return self._decide_in_plain(inputs, sample)

    def gain(self, inputs: Inputs) -> float:
        """Tokens/s of rounds over tokens/s of plain steps."""
        return inputs.accept / self._break_even(inputs)

    def _inputs(self, sample: LoadSample) -> Inputs:
        return Inputs(sample.batch_size, sample.context_per_request, self._accept.value)

    def _break_even(self, inputs: Inputs) -> float:
        return self._costs.table.break_even(inputs.batch_size, inputs.context)

    def _ms(self, mode: Mode, inputs: Inputs) -> float:
        return self._costs.table.ms(mode, inputs.batch_size, inputs.context)

    def _idle(self) -> Decision:
        """Nothing runs that could lose by the next round, and an idle server drafts first."""
        if self._probe is not None and not self._probe.is_for_cost:  # times add up over requests
            self._end_probe(self._probe)
        self._high_steps = 0
        self._mode = Mode.SPEC
        return Decision(Mode.SPEC, "idle", "idle")

    def _decide_in_spec(self, inputs: Inputs) -> Decision:
        gain = self.gain(inputs)
        if gain < 1:
            return self._switch(Mode.PLAIN, inputs)
        if gain < self._doubt_of_plain(inputs):
            length = self._probes.LONGEST
            if self._probes.is_due_for_cost(self._lost_ms(inputs, length * (gain - 1))):
                return self._start_probe(Mode.PLAIN, length, is_for_cost=True)
        return Decision(Mode.SPEC, f"gain {gain:.2f}")

    def _decide_in_plain(self, inputs: Inputs, sample: LoadSample) -> Decision:
        gain = self.gain(inputs)
        is_trusted = self._accept.weight >= TRUSTED_ROUNDS
        pays = gain > 1 + self._margin
        if is_trusted and pays:
            return self._dwell_in_plain(inputs, sample)
        self._high_steps = 0
        break_even = self._break_even(inputs)
        is_unknown = self._lacks(Mode.SPEC, inputs)
        is_for_cost = is_unknown or self._probes.is_old
        length = self._probes.rounds(inputs.batch_size)
        if is_for_cost:
            length = self._probes.LONGEST if is_unknown else self._probes.TIMING
        lost_ms = self._lost_ms(inputs, length * max(0.0, break_even - inputs.accept))
        is_wanted = not is_trusted and self._can_pay(break_even)
        is_due = is_wanted and self._probes.is_due(lost_ms, pays)
        if is_for_cost and self._can_pay(break_even / (DOUBT if is_unknown else 1)):
            is_due = is_due or self._probes.is_due_for_cost(lost_ms)
        if is_due:
            return self._start_probe(Mode.SPEC, length, is_for_cost)
        return Decision(Mode.PLAIN, f"gain {gain:.2f}")

    def _lost_ms(self, inputs: Inputs, steps: float) -> float:
        """Of a burst that costs ``steps`` plain steps more than it gains, and of its switches."""
        return (steps + SWITCH_STEPS) * self._ms(Mode.PLAIN, inputs)

    def _dwell_in_plain(self, inputs: Inputs, sample: LoadSample) -> Decision:
        self._high_steps += 1
        pressure = ""
        if sample.queue_length:
            pressure = f" (queue {sample.queue_length})"
        elif sample.kv_usage > KV_PRESSURE:
            pressure = f" (KV pool {sample.kv_usage:.0%} full)"
        needed = self._dwell * (2 if pressure else 1)
        if self._high_steps < needed:
            return Decision(Mode.PLAIN, f"dwell {self._high_steps} of {needed}{pressure}")
        return self._switch(Mode.SPEC, inputs)

    def _can_pay(self, break_even: float) -> bool:
        """Whether rounds would be worth it if every draft were accepted."""
        return self._max_accept > (1 + self._margin) * break_even

    def _lacks(self, mode: Mode, inputs: Inputs) -> bool:
        return not self._costs.table.is_measured(mode, inputs.batch_size, inputs.context)

    def _doubt_of_plain(self, inputs: Inputs) -> float:
        """By which factor plain steps may be faster than believed; they are cheap to time."""
        if self._lacks(Mode.PLAIN, inputs):
            return math.inf
        return OLD_DOUBT if self._probes.is_old else 1.0

    def _start_probe(self, mode: Mode, length: int, is_for_cost: bool) -> Decision:
        self._high_steps = 0
        self._probe = Probe(mode, length - 1, is_for_cost)
        return Decision(mode, self._probe_reason(self._probe), PROBE)

    def _continue_probe(self, probe: Probe, inputs: Inputs) -> Decision:
        if probe.left > 0 and not self._is_hopeless(probe, inputs):
            probe.left -= 1
            return Decision(probe.mode, self._probe_reason(probe), PROBE)
        self._end_probe(probe)
        # What a mode costs is known after the next correction; until then the mode stays.
        if not probe.is_for_cost and self.gain(inputs) > 1 + self._margin:
            return self._switch(Mode.SPEC, inputs, "probe, ")
        return Decision(self._mode, f"probe over, gain {self.gain(inputs):.2f}")

    def _is_hopeless(self, probe: Probe, inputs: Inputs) -> bool:
        """The batch may have grown meanwhile."""
        if probe.mode is Mode.PLAIN:
            return False
        break_even = self._break_even(inputs)
        if not self._can_pay(break_even / (DOUBT if probe.is_for_cost else 1)):
            return True
        steps = probe.left * max(0.0, break_even - inputs.accept)
        return not self._probes.affords(steps * self._ms(Mode.PLAIN, inputs))

    def _end_probe(self, probe: Probe) -> None:
        self._probe = None
        self._probes.finish(probe.is_for_cost)
        if probe.is_for_cost:
            self._costs.correct_soon()

    def _probe_reason(self, probe: Probe) -> str:
        if probe.is_for_cost:
            return f"probe: to time {probe.mode.name} at this load"
        return f"probe: accept length {self._accept.value:.2f} is too old"

    def _switch(self, mode: Mode, inputs: Inputs, prefix: str = "") -> Decision:
        cause = self._cause(mode, inputs)
        self._mode = mode
        self._high_steps = 0
        self._at_switch = inputs
        return Decision(
            mode,
            f"{prefix}{cause}: gain {self.gain(inputs):.2f}, {inputs.accept:.2f} tokens in "
            f"{self._ms(Mode.SPEC, inputs):.2f} ms against 1 in "
            f"{self._ms(Mode.PLAIN, inputs):.2f} ms",
            gain=self.gain(inputs),
        )

    def _cause(self, mode: Mode, inputs: Inputs) -> str:
        """The input that moved the gain most towards ``mode`` since the last switch."""
        before = self._at_switch or inputs
        moved = {
            f"batch size {inputs.batch_size:.0f}": Inputs(
                inputs.batch_size, before.context, before.accept
            ),
            f"context {inputs.context:.0f}": Inputs(
                before.batch_size, inputs.context, before.accept
            ),
            f"accept length {inputs.accept:.2f}": Inputs(
                before.batch_size, before.context, inputs.accept
            ),
        }
        gains = {name: self.gain(changed) for name, changed in moved.items()}
        return (max if mode is Mode.SPEC else min)(gains, key=lambda name: gains[name])
