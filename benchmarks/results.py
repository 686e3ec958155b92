"""The result file of a run: one JSON, rewritten after every level, from which a run resumes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.arms import Setup, common_flags
from benchmarks.servers import nvidia_smi

SCHEMA = (
    "levels.<n>.output_tok_s: output tokens of all requests of the level over the time from the "
    "first send to the last token, closed loop, after a warm-up; tpot: (last - first event) "
    "/ tokens between, per request; pace: the same between two events of a request, over all "
    "events of the level, so that its median has no prefill of others in it; accept_len: over "
    "speculative rounds alone; round_share: share of decoded tokens made by rounds; "
    "core_wait_share: of the level and its warm-up, in which the main thread of a process of the "
    "server could run but had no core, the largest; steal_share: of all cores' time, taken by "
    "other machines; session: index into sessions, one per command that added to this file. "
    "gpu_mem_gb: GiB."
)


class ResultFile:
    """The document and its path. ``document`` has the keys of the project's result format."""

    def __init__(self, path: Path, provenance: dict[str, Any], fresh: bool = False) -> None:
        self.path = path
        self.document: dict[str, Any] = {"benchmark": "envelope", "schema": SCHEMA}
        if path.is_file() and not fresh:
            self.document = json.loads(path.read_text())
            self._check_same(provenance)
        self.document["provenance"] = self.document.get("provenance", provenance)
        self.document.setdefault("sessions", []).append(provenance)
        self.arms: dict[str, Any] = self.document.setdefault("arms", {})
        self.session = len(self.document["sessions"]) - 1

    def _check_same(self, provenance: dict[str, Any]) -> None:
        recorded = self.document["provenance"]
        for key in ("sglang", "torch", "gpu", "model", "simulated_accept", "input_len", "flags"):
            if recorded.get(key) != provenance.get(key):
                raise ValueError(
                    f"{self.path} holds results with {key} {recorded.get(key)!r}, not "
                    f"{provenance.get(key)!r}: use --fresh or another --out"
                )

    def claim(self, arm: str, flags: list[str]) -> None:
        """Refuse to mix two configurations under one arm's name. Paths may differ."""
        kept = self.arms.get(arm, {})
        recorded = kept.get("config", {}).get("flags")
        if kept.get("levels") and recorded is not None and recorded != _without_paths(flags):
            raise ValueError(
                f"{self.path} holds arm {arm!r} measured with {' '.join(recorded)}: "
                "use --fresh or another --out"
            )

    def missing(self, arm: str, levels: tuple[int, ...]) -> list[int]:
        """The levels of ``arm`` that are not measured yet."""
        done = self.arms.get(arm, {}).get("levels", {})
        return [level for level in levels if str(level) not in done]

    def record_server(self, arm: str, flags: list[str], **facts: Any) -> None:
        entry = self.arms.setdefault(arm, {"levels": {}})
        entry.pop("error", None)
        config = {"flags": _without_paths(flags), **facts.pop("config", {})}
        entry.update(facts, config=config)
        self.save()

    def record_level(self, arm: str, level: int, measured: dict[str, Any]) -> None:
        levels = self.arms.setdefault(arm, {"levels": {}})["levels"]
        levels[str(level)] = {**measured, "session": self.session}
        self.arms[arm]["levels"] = dict(sorted(levels.items(), key=lambda item: int(item[0])))
        self.save()

    def record_error(self, arm: str, error: str) -> None:
        self.arms.setdefault(arm, {"levels": {}})["error"] = error[:4000]
        self.save()

    def save(self) -> None:
        """Atomic: a reader, or the next session, sees the old file or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".json.tmp")
        scratch.write_text(json.dumps(self.document, indent=1) + "\n")
        scratch.replace(self.path)


def _without_paths(flags: list[str]) -> list[str]:
    return [Path(flag).name if "/" in flag else flag for flag in flags]


def file_name(setup: Setup, sglang: str, gpu: str) -> str:
    """``envelope-<sglang>-<gpu>-<attention>-<shape>-<accept>.json``; the sync is the toggle's."""
    steps, topk, tokens = setup.steps_topk_tokens
    lengths = f"{setup.input_len}x{setup.output_len}"
    shape = f"{setup.models.label}-{lengths}-{steps}-{topk}-{tokens}-{setup.sync}"
    if "--tp-size" in setup.extra:
        shape += f"-tp{setup.extra[setup.extra.index('--tp-size') + 1]}"
    accept = f"{setup.accept:g}" if setup.accept > 0 else "real"
    return f"envelope-{sglang}-{gpu_slug(gpu)}-{setup.attention}-{shape}-{accept}.json"


def make_provenance(setup: Setup) -> dict[str, Any]:
    """``flags``: of every server, with the pool that no level would need: it follows the levels."""
    steps, topk, tokens = setup.steps_topk_tokens
    return provenance_of(
        "benchmarks.envelope",
        device=setup.device,
        attention_backend=setup.attention,
        model=setup.models.label,
        draft=str(setup.models.draft.name),
        spec={"steps": steps, "topk": topk, "draft_tokens": tokens},
        simulated_accept=setup.accept if setup.accept > 0 else None,
        input_len=setup.input_len,
        output_len=setup.output_len,
        max_total_tokens=setup.max_total_tokens,
        flags=_without_paths(common_flags(replace(setup, levels=(0,)))),
        extra_flags=list(setup.extra),
    )


def provenance_of(module: str, device: str, **settings: Any) -> dict[str, Any]:
    """Where and from what this run's figures come; ``settings`` are the benchmark's own."""
    commit, dirty = _commit()
    gpu, driver = _gpu(device)
    return {
        "command": " ".join(["python3 -m", module, *_without_out(sys.argv[1:])]),
        "commit": commit,
        "dirty": dirty,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "sglang": _version("sglang"),
        "spec_toggle": _version("spec-toggle"),
        "torch": _version("torch"),
        "cuda": _torch_cuda(),
        "driver": driver,
        "gpu": gpu,
        **settings,
    }


def save_json(
    folder: Path,
    benchmark: str,
    provenance: dict[str, Any],
    shape: str,
    schema: str,
    arms: dict[str, Any],
) -> Path:
    """Write ``<benchmark>-<sglang>-<gpu>-<attention>-<shape>-<accept>.json`` below ``folder``."""
    accept = provenance["simulated_accept"] or "real"
    if isinstance(accept, list):
        accept = "-".join(f"{length:g}" for length in accept)
    gpu, attention = gpu_slug(provenance["gpu"]), provenance["attention_backend"]
    name = f"{benchmark}-{provenance['sglang']}-{gpu}-{attention}-{shape}-{accept}.json"
    document = {"benchmark": benchmark, "schema": schema, "provenance": provenance, "arms": arms}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document, indent=1) + "\n")
    return folder / name


def gpu_slug(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", gpu.lower().replace("nvidia", ""))


def _without_out(arguments: list[str]) -> list[str]:
    """Where the file was written is a path of one machine."""
    kept = [a for a in arguments if not a.startswith("--out=")]
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return kept


def _commit() -> tuple[str | None, bool | None]:
    """``SPEC_TOGGLE_COMMIT`` (ending in ``-dirty`` if so) speaks for a copy without git."""
    given = os.environ.get("SPEC_TOGGLE_COMMIT")
    if given:
        return given.removesuffix("-dirty"), given.endswith("-dirty")
    try:
        head, status = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout
            for words in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--", ".", ":!benchmarks/results"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return head.strip(), bool(status.strip())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _torch_cuda() -> str | None:
    """Read from the file: importing torch would take seconds of a short session."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    source = (Path(spec.origin).parent / "version.py").read_text()
    found = re.search(r"^cuda[^=]*= *'([^']+)'", source, re.MULTILINE)
    return found.group(1) if found else None


def _gpu(device: str) -> tuple[str, str | None]:
    rows = nvidia_smi("--query-gpu=name,driver_version") if device != "cpu" else []
    if not rows:
        return device, None
    name, _, driver = rows[0].partition(",")
    return name.strip(), driver.strip()
