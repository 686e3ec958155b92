"""Measured cost tables on disk, each under the hash of everything that it depends on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spec_toggle.cost import CostError, CostTable

logger = logging.getLogger(__name__)


class ProfileError(ValueError):
    """A profile that cannot be read; the message names the file and the reason."""


@dataclass(frozen=True)
class Profile:
    """``key``: what the times depend on, by name. ``time``: when they were measured, ISO 8601."""

    key: dict[str, Any]
    table: CostTable
    time: str


def profile_dir() -> Path:
    """``$SPEC_TOGGLE_CACHE/profiles``, else ``~/.cache/spec-toggle/profiles``."""
    root = os.environ.get("SPEC_TOGGLE_CACHE") or Path.home() / ".cache" / "spec-toggle"
    return Path(root).absolute() / "profiles"


def digest(value: Any) -> str:
    """16 hex digits of a JSON-like value; anything else counts by its text."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def profile_path(key: dict[str, Any]) -> Path:
    return profile_dir() / f"{digest(key)}.json"


def read_profile(path: Path) -> Profile:
    """Raises ProfileError for a file that is missing, broken or not a profile."""
    try:
        document = json.loads(path.read_text())
        table = CostTable.from_json(json.dumps(document["table"]))
        return Profile(dict(document["key"]), table, str(document["time"]))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror}).") from None
    except CostError as error:
        raise ProfileError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"{path}: not a profile ({error!r}).") from None


def load(key: dict[str, Any]) -> CostTable | None:
    """The table saved under ``key``; None, with a warning for a broken file, if there is none."""
    path = profile_path(key)
    if not path.exists():
        return None
    try:
        return read_profile(path).table
    except ProfileError as error:
        logger.warning("Dynamic speculation: %s Profiling again.", error)
        return None


def save(key: dict[str, Any], table: CostTable) -> None:
    """Write at once or not at all: servers may start together. A read-only disk only warns."""
    path = profile_path(key)
    document = {
        "key": key,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "table": json.loads(table.to_json()),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as scratch:
            json.dump(document, scratch, indent=1, default=str)
        os.replace(scratch.name, path)
    except OSError as error:
        logger.warning("Dynamic speculation: the profile was not saved to %s (%s).", path, error)
