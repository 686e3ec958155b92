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


class ConfigError(ValueError):
    """A value the toggle cannot work with; the message names it, the reason and the fix."""


@dataclasses.dataclass(frozen=True)
class DynamicSpecConfig:
    """What ``--enable-dynamic-spec`` runs with.

    ``threshold``: decode batch size above which iterations are PLAIN (0: never speculate).
    ``hysteresis``: requests below the threshold before SPEC returns; None: threshold // 8.
    ``dwell``: iterations the batch must stay that small before SPEC returns.
    ``draft_sync``: how the draft's KV cache follows tokens that plain steps produce.
    ``sync_tokens``: tokens of the whole batch that deferred sync collects before it writes them.
    """

    threshold: int = 32
    hysteresis: int | None = None
    dwell: int = 16
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
    return DynamicSpecConfig(**values)
