"""A result file of ``benchmarks.envelope``, asked by arm and concurrency."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any


class Result:
    """``document``: the file's content; ``name``: of the file, without its ending."""

    def __init__(self, document: dict[str, Any], name: str) -> None:
        self.name = name
        self.provenance: dict[str, Any] = document["provenance"]
        self.arms: dict[str, Any] = document["arms"]
        sessions = document.get("sessions", [self.provenance])
        # In order, without repetitions: sessions of different code must be seen to be that.
        self.commits = list(dict.fromkeys(_commit(session) for session in sessions))

    @classmethod
    def read(cls, path: Path) -> Result:
        """Raises OSError, or ValueError for a file that is no result of ``envelope``."""
        try:
            document = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        if not isinstance(document, dict) or document.get("benchmark") != "envelope":
            raise ValueError(f"{path} is not a result of benchmarks.envelope.")
        return cls(document, path.stem)

    @property
    def levels(self) -> list[int]:
        return sorted({int(n) for arm in self.arms.values() for n in arm.get("levels", {})})

    def entry(self, arm: str, level: int) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.arms.get(arm, {}).get("levels", {}).get(str(level))
        return found

    def rate(self, arm: str, level: int) -> float | None:
        """Output tok/s; ``envelope`` is the better of none and static, once both are known."""
        if arm == "envelope":
            both = [self.rate("none", level), self.rate("static", level)]
            return None if None in both else max(rate for rate in both if rate is not None)
        entry = self.entry(arm, level)
        return None if entry is None else float(entry["output_tok_s"])

    def plain_references(self, arm: str, level: int) -> list[str]:
        """``none``, ``none_again`` or both: what ran in the session that measured ``arm``.

        A machine drifts by more than the bar between two sessions.
        """
        wanted = (self.entry(arm, level) or {}).get("session")
        entries = {name: self.entry(name, level) for name in ("none", "none_again")}
        ran = [name for name, found in entries.items() if found and found["session"] == wanted]
        return ran or ["none"]

    def plain_mean(self, arm: str, level: int, field: str) -> float | None:
        """Of ``field`` over the ``plain_references``; None if one does not have it."""
        entries = [self.entry(name, level) or {} for name in self.plain_references(arm, level)]
        values = [entry.get(field) for entry in entries]
        return None if None in values else statistics.fmean(v for v in values if v is not None)

    def ratio(self, arm: str, reference: str, level: int) -> float | None:
        above, below = self.rate(arm, level), self.rate(reference, level)
        if reference == "none" and arm.startswith("forced_plain"):
            below = self.plain_mean(arm, level, "output_tok_s")
        return above / below if above and below else None


def _commit(session: dict[str, Any]) -> str:
    return f"{str(session['commit'])[:12]}{' (dirty)' if session['dirty'] else ''}"
