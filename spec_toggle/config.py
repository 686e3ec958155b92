"""The toggle's configuration: one frozen record, its TOML form and its checks."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = "dynamic_spec"
# Carries the configuration from the launching process to the scheduler processes it starts.
ENVIRONMENT = "SPEC_TOGGLE_CONFIG"
DRAFT_SYNCS = ("deferred", "eager", "off")
POLICIES = ("threshold", "auto")
DEFAULT_POLICY = "threshold"
# Settings that mean nothing to the other policy.
POLICY_SETTINGS = {
    "threshold": ("threshold", "hysteresis"),
    "auto": ("margin", "skip_profile"),
}


class ConfigError(ValueError):
    """A value the toggle cannot work with; the message names it, the reason and the fix."""


@dataclasses.dataclass(frozen=True)
class DynamicSpecConfig:
    """What ``--enable-dynamic-spec`` runs with.

    ``policy``: what decides: a batch size, or measured costs and acceptance (auto).
    ``threshold``: decode batch size above which iterations are PLAIN (0: never speculate).
    ``hysteresis``: requests below the threshold before SPEC returns; None: threshold // 8.
    ``dwell``: iterations the batch must stay that small (auto: SPEC must stay that much faster)
    before SPEC returns.
    ``margin``: auto: share by which rounds must be faster before SPEC returns.
    ``skip_profile``: auto: time no iterations at start, learn costs in service only.
    ``draft_sync``: how the draft's KV cache follows tokens that plain steps produce.
    ``sync_tokens``: tokens of the whole batch that deferred sync collects before it writes them.
    """

    policy: str = DEFAULT_POLICY
    threshold: int = 32
    hysteresis: int | None = None
    dwell: int = 16
    margin: float = 0.02
    skip_profile: bool = False
    draft_sync: str = "deferred"
    sync_tokens: int = 4096

    def __post_init__(self) -> None:
        check_int("threshold", self.threshold, 0, 1 << 20)
        check_int("dwell", self.dwell, 1, 1 << 20)
        check_int("sync_tokens", self.sync_tokens, 1, 1 << 16)
        if self.hysteresis is not None:
            check_int("hysteresis", self.hysteresis, 0, 1 << 20)
            if self.hysteresis > self.threshold:
                raise ConfigError(
                    f"dynamic-spec hysteresis {self.hysteresis} is larger than threshold "
                    f"{self.threshold}: no batch would be small enough to speculate again. "
                    f"Use a hysteresis between 0 and {self.threshold}."
                )
        if self.policy not in POLICIES:
            raise ConfigError(
                f"dynamic-spec policy {self.policy!r} is unknown. "
                f"Use one of: {', '.join(POLICIES)}."
            )
        check_share("margin", self.margin)
        check_bool("skip_profile", self.skip_profile)
        if self.draft_sync not in DRAFT_SYNCS:
            raise ConfigError(
                f"dynamic-spec draft sync {self.draft_sync!r} is unknown. "
                f"Use one of: {', '.join(DRAFT_SYNCS)}."
            )

    @property
    def resume_at(self) -> int:
        """Largest batch size at which SPEC may return."""
        hysteresis = self.threshold // 8 if self.hysteresis is None else self.hysteresis
        return self.threshold - hysteresis

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DynamicSpecConfig:
        return cls(**json.loads(text))


FIELDS = tuple(field.name for field in dataclasses.fields(DynamicSpecConfig))


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError unless ``value`` is an int in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"dynamic-spec {name} {value!r} is out of range. "
            f"Use a whole number from {low} to {high}."
        )


def check_share(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(
            f"dynamic-spec {name} {value!r} is out of range. Use a number from 0 to 1."
        )


def check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"dynamic-spec {name} {value!r} is not a truth value. Use true or false.")


def check_policy_settings(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a given setting that the chosen policy would not look at."""
    policy = values.get("policy", DEFAULT_POLICY)
    for owner, names in POLICY_SETTINGS.items():
        given = [name for name in names if name in values]
        if given and owner != policy:
            raise ConfigError(
                f"dynamic-spec {given[0]} {values[given[0]]!r} has no effect with policy "
                f"{policy!r}: it is a setting of {owner!r}. Remove it, or use policy {owner!r}."
            )


def load_file(path: str) -> dict[str, Any]:
    """Read the ``[dynamic_spec]`` table of a TOML file.

    Raises ConfigError for a missing file, broken TOML, a missing table or an unknown key.
    """
    try:
        document = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dynamic-spec-config {path}: cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--dynamic-spec-config {path}: not valid TOML ({error}).") from None
    unknown_tables = sorted(set(document) - {TABLE})
    table = document.get(TABLE)
    if unknown_tables or not isinstance(table, dict):
        found = f"found {unknown_tables[0]!r}" if unknown_tables else "it is missing"
        raise ConfigError(
            f"--dynamic-spec-config {path}: expected one table [{TABLE}], but {found}. "
            f"Put all keys under [{TABLE}]."
        )
    unknown = sorted(set(table) - set(FIELDS))
    if unknown:
        raise ConfigError(
            f"--dynamic-spec-config {path}: unknown key {unknown[0]!r}. "
            f"Known keys: {', '.join(FIELDS)}."
        )
    return table


def build_config(flags: Mapping[str, Any], path: str | None = None) -> DynamicSpecConfig:
    """Defaults, overridden by the file at ``path``, overridden by ``flags`` that are not None."""
    values = load_file(path) if path is not None else {}
    values.update({name: value for name, value in flags.items() if value is not None})
    config = DynamicSpecConfig(**values)
    check_policy_settings(values)
    return config
