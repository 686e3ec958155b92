"""When to speculate: pure state machines, one decision per decode iteration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from spec_toggle.load import LoadSample

if TYPE_CHECKING:
    from spec_toggle.config import DynamicSpecConfig


class Mode(Enum):
    """How one decode iteration runs, for the whole batch."""

    SPEC = "spec"
    PLAIN = "plain"


# The cause of a decision that only wants to know more.
PROBE = "probe"


@dataclass(frozen=True)
class Decision:
    """``reason`` is for people; ``cause`` is one of a few words, for counting by it.

    ``gain``: tokens/s of rounds over tokens/s of plain steps, where the policy estimates it.
    """

    mode: Mode
    reason: str
    cause: str = "load"
    gain: float | None = None


class Policy(Protocol):
    """Same samples in the same order give the same decisions: ranks must agree."""

    def decide(self, sample: LoadSample) -> Decision: ...

    def expects_plain(self, sample: LoadSample) -> bool:
        """Whether a load like ``sample`` would end SPEC. Changes nothing."""

    def configure(self, config: DynamicSpecConfig) -> None:
        """Take over settings that an operator has changed; keep what has been learned."""

    @property
    def boundary(self) -> float | None:
        """Batch size above which it decodes plainly, where one number says it."""


class ThresholdPolicy:
    """PLAIN above ``threshold``; SPEC again after ``dwell`` iterations at or below ``resume_at``.

    Going PLAIN is immediate, because a large batch loses throughput at once. Coming back waits,
    because a load that flaps around the threshold would pay a switch per flap: at most one return
    per ``dwell`` iterations is possible.
    """

    def __init__(self, threshold: int, resume_at: int, dwell: int) -> None:
        self._threshold = threshold
        self._resume_at = resume_at
        self._dwell = dwell
        self._mode = Mode.SPEC
        self._low_steps = 0

    def configure(self, config: DynamicSpecConfig) -> None:
        self._threshold = config.threshold
        self._resume_at = config.resume_at
        self._dwell = config.dwell

    @property
    def boundary(self) -> float:
        return self._threshold

    def expects_plain(self, sample: LoadSample) -> bool:
        return sample.batch_size > self._threshold

    def decide(self, sample: LoadSample) -> Decision:
        size = sample.batch_size
        if size > self._threshold:
            self._low_steps = 0
            self._mode = Mode.PLAIN
            return Decision(self._mode, f"batch size {size} > threshold {self._threshold}")
        if self._mode is Mode.SPEC:
            return Decision(self._mode, f"batch size {size} <= threshold {self._threshold}")
        if self._threshold == 0:
            return Decision(self._mode, "threshold 0 never speculates")
        if size == 0:
            return self._resume("idle", cause="idle")
        if size > self._resume_at:
            self._low_steps = 0
            return Decision(self._mode, f"batch size {size} > {self._resume_at} (hysteresis)")
        self._low_steps += 1
        if self._low_steps < self._dwell:
            return Decision(self._mode, f"dwell {self._low_steps} of {self._dwell}")
        return self._resume(f"batch size {size} <= {self._resume_at} for {self._dwell} iterations")

    def _resume(self, reason: str, cause: str = "load") -> Decision:
        self._low_steps = 0
        self._mode = Mode.SPEC
        return Decision(self._mode, reason, cause)
