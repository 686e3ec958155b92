"""What an operator may ask of a running server, and how it reaches every rank at once.

An order travels as SGLang's ``SetInternalStateReq``: rank 0 receives it and broadcasts it with the
iteration's other requests, so all ranks apply it between the same two iterations. That request
carries numbers only. A forced mode ends by a second order, the release, and not by a clock: ranks
whose clocks differ would run different modes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from spec_toggle.config import (
    DRAFT_SYNCS,
    FIELDS,
    POLICIES,
    ConfigError,
    DynamicSpecConfig,
    check_policy_settings,
)
from spec_toggle.policy import Decision, Mode

PREFIX = "dynamic_spec_"
FORCE, UNTIL, RELEASE = f"{PREFIX}force", f"{PREFIX}until", f"{PREFIX}release"
MAX_FORCE_S = 86_400
# Settings with words for values. SGLang's request carries numbers: their places here.
CHOICES = {"policy": POLICIES, "draft_sync": DRAFT_SYNCS}
# Settings that a running server cannot change, with the reason.
FIXED = {
    "skip_profile": "it is about the start",
    "sync_tokens": "its buffers are made at launch; restart with --dynamic-spec-sync-tokens",
}
STEERABLE = tuple(name for name in FIELDS if name not in FIXED)
NO_MODE = "none"
_MODE_NUMBERS = {Mode.SPEC: 1, Mode.PLAIN: 2}


@dataclasses.dataclass(frozen=True)
class Force:
    """A mode held against the policy. ``until`` (unix seconds) names it; no rank acts on it."""

    mode: Mode
    until: float


@dataclasses.dataclass(frozen=True)
class Order:
    """One change: ``settings`` by name, a force to begin, and whether to end one.

    ``release``: the ``until`` of the force to end; 0 ends any; None ends none.
    """

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    force: Force | None = None
    release: float | None = None

    @classmethod
    def from_body(cls, body: Any, now: float) -> Order:
        """Read an operator's request, e.g. ``{"threshold": 24, "force": "plain", "seconds": 60}``.

        ``now``: unix seconds. Raises ConfigError for anything unknown, unfit or empty.
        """
        if not isinstance(body, dict) or not body:
            raise ConfigError(f"nothing to change. Give at least one of: {_known()}.")
        rest = dict(body)
        has_force = "force" in rest
        mode, seconds = rest.pop("force", None), rest.pop("seconds", None)
        settings = {name: _setting(name, value) for name, value in rest.items()}
        if not has_force:
            if seconds is not None:
                raise ConfigError("seconds has no effect without force. Add force, or remove it.")
            return cls(settings)
        if mode == NO_MODE:
            if seconds is not None:
                raise ConfigError("force none takes no seconds: it ends at once. Remove seconds.")
            return cls(settings, release=0)
        if mode not in [each.value for each in Mode]:
            raise ConfigError(f"force {mode!r} is unknown. Use one of: spec, plain, none.")
        return cls(settings, Force(Mode(mode), now + _check_seconds(seconds)))

    def to_wire(self) -> dict[str, int | float]:
        wire: dict[str, int | float] = {
            PREFIX + name: CHOICES[name].index(value) if name in CHOICES else value
            for name, value in self.settings.items()
        }
        if self.force is not None:
            wire[FORCE], wire[UNTIL] = _MODE_NUMBERS[self.force.mode], self.force.until
        if self.release is not None:
            wire[RELEASE] = self.release
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, int | float]) -> Order:
        """Inverse of ``to_wire``. Raises ConfigError for keys that are not an order's."""
        rest = dict(wire)
        number, until = rest.pop(FORCE, None), rest.pop(UNTIL, 0)
        release = rest.pop(RELEASE, None)
        modes = {value: mode for mode, value in _MODE_NUMBERS.items()}
        if number is not None and number not in modes:
            raise ConfigError(f"{FORCE} {number!r} is unknown. Use 1 (spec) or 2 (plain).")
        force = None if number is None else Force(modes[int(number)], until)
        settings = {k.removeprefix(PREFIX): v for k, v in rest.items()}
        words = {k: _word(k, v) if k in CHOICES else v for k, v in settings.items()}
        return cls({k: _setting(k, v) for k, v in words.items()}, force, release)


class Steering:
    """The settings in force and the forced mode of one scheduler process."""

    def __init__(self, config: DynamicSpecConfig, draft_syncs: Sequence[str] = DRAFT_SYNCS) -> None:
        """``draft_syncs``: those that the server has the buffers for."""
        self.config = config
        self.draft_syncs = draft_syncs
        self.force: Force | None = None

    def apply(self, order: Order) -> str:
        """Take ``order`` over, whole or not at all. Returns what changed, for the log.

        Raises ConfigError if the settings do not go together.
        """
        before = self.config
        check_policy_settings({"policy": before.policy, **order.settings})
        if "draft_sync" in order.settings:
            check_change_of_sync(before.draft_sync, order.settings["draft_sync"], self.draft_syncs)
        self.config = dataclasses.replace(before, **order.settings)
        changes = [f"{k} {getattr(before, k)} -> {v}" for k, v in order.settings.items()]
        if self.force is not None and order.release in (0, self.force.until):
            changes.append(f"{self.force.mode.name} no longer forced")
            self.force = None
        if order.force is not None:
            self.force = order.force
            changes.append(f"{order.force.mode.name} forced")
        return ", ".join(changes)

    def override(self, decision: Decision) -> Decision:
        """The policy's decision, or the forced mode instead."""
        if self.force is None:
            return decision
        return Decision(self.force.mode, "forced by an operator", cause="forced")


def _setting(name: str, value: Any) -> Any:
    if name in FIXED:
        raise ConfigError(f"{name} cannot change on a running server: {FIXED[name]}.")
    if name not in STEERABLE:
        raise ConfigError(f"unknown setting {name!r}. Known: {_known()}.")
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise ConfigError(
                f"{name} {value!r} is unknown. Use one of: {', '.join(CHOICES[name])}."
            )
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} {value!r} cannot be set on a running server. Use a number.")
    return value


def _word(name: str, place: int | float) -> str:
    words = CHOICES[name]
    if place not in range(len(words)):
        raise ConfigError(f"{PREFIX}{name} {place!r} is unknown. Use 0 to {len(words) - 1}.")
    return words[int(place)]


def check_change_of_sync(before: str, after: str, possible: Sequence[str]) -> None:
    """Raise ConfigError for a draft sync whose buffers the server did not make at launch."""
    if after != before and after not in possible:
        raise ConfigError(
            f"draft_sync {after!r} cannot be set here: its buffers are made at launch, and this "
            f"server was launched with {before!r}. Restart with --dynamic-spec-draft-sync {after}."
        )


def _check_seconds(seconds: Any) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= MAX_FORCE_S:
        given = "no seconds" if seconds is None else f"seconds {seconds!r}"
        raise ConfigError(
            f"force needs a time after which it ends, but got {given}. "
            f"Use a number above 0, at most {MAX_FORCE_S}."
        )
    return float(seconds)


def _known() -> str:
    return ", ".join((*STEERABLE, "force", "seconds"))
