"""Applying and reversing the patches of a release: what hooks cannot do.

A patch names the content of each file before and after, as git does: ``index OLD..NEW``, the hashes
of full blobs. So the state of a file is known from its content alone, and nothing is changed unless
every file is in a known state. ``git apply`` does the editing.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from spec_toggle.source import PACKAGE

PATCHES = Path(str(files("spec_toggle"))) / "patches"
HEADERS = ("Subject", "Why", "Applies-to", "Remove-when")
ABSENT = "0" * 40
_FILE = re.compile(
    r"^diff --git a/(?P<name>\S+) b/(?P=name)\n(?:new file mode \d+\n)?"
    r"index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40})",
    re.MULTILINE,
)


class PatchError(Exception):
    """What was asked cannot be done; nothing was changed."""


@dataclass(frozen=True, eq=False)
class Patch:
    """One patch file. ``changes``: for each file, its blob hash before and after."""

    path: Path
    changes: dict[str, tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> Patch:
        found = _FILE.finditer(path.read_text(encoding="utf-8"))
        return cls(path, {m["name"]: (m["old"], m["new"]) for m in found})

    def state(self, folder: Path) -> str:
        """``applied``, ``not applied``, or ``unknown: FILE…``, by the content of its files."""
        hashes = {name: blob_hash(folder / name) for name in self.changes}
        for side, state in enumerate(("not applied", "applied")):
            if all(hashes[name] == change[side] for name, change in self.changes.items()):
                return state
        # Neither: name the files that are not pristine, edited or left by a patch half applied.
        odd = (name for name, change in self.changes.items() if hashes[name] != change[0])
        return f"unknown: {', '.join(odd)}"


def blob_hash(path: Path) -> str:
    """The git hash of a file's content; ABSENT if there is none."""
    if not path.is_file():
        return ABSENT
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def run(action: str, target: str | None = None) -> list[str]:
    """``apply``, ``reverse`` or ``status``: do it, and return a line for each patch.

    ``target``: the folder that holds the package; None: that of the installed one. Raises
    PatchError with nothing changed.
    """
    folder, release = _installed() if target is None else (Path(target), _release(Path(target)))
    patches = patches_for(release)
    states = {patch: patch.state(folder) for patch in patches}
    if action == "status":
        return [f"{patch.path.stem}: {state}" for patch, state in states.items()]
    wanted = {"apply": "applied", "reverse": "not applied"}[action]
    if unknown := [f"{p.path.stem}: {s}" for p, s in states.items() if s.startswith("unknown")]:
        raise PatchError(
            f"{'; '.join(unknown)}: neither pristine nor patched in {folder}, so nothing was "
            f"changed. Reinstall {PACKAGE}."
        )
    todo = [patch for patch, state in states.items() if state != wanted]
    if todo:
        _git_apply(folder, todo, is_reverse=action == "reverse")
    return [
        f"{patch.path.stem}: {wanted}{'' if patch in todo else ' already'}" for patch in patches
    ]


def patches_for(release: str) -> list[Patch]:
    """The patches of one release, in order. Raises PatchError if there are none."""
    found = sorted((PATCHES / release).glob("*.patch"))
    if not found:
        known = ", ".join(sorted(entry.name for entry in PATCHES.iterdir()))
        raise PatchError(f"there are no patches for {PACKAGE} {release}, only for {known}.")
    return [Patch.read(path) for path in found]


def _installed() -> tuple[Path, str]:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise PatchError(f"{PACKAGE} is not installed in this environment: name its --target.")
    return Path(spec.origin).parent.parent, version(PACKAGE)


def _release(folder: Path) -> str:
    """The release in ``folder``, by the metadata that lies beside the package."""
    if (folder / PACKAGE).is_dir():
        for distribution in distributions(name=PACKAGE, path=[str(folder)]):
            return distribution.version
    raise PatchError(f"{folder} does not hold {PACKAGE} and its metadata, as site-packages does.")


def _git_apply(folder: Path, patches: Sequence[Patch], is_reverse: bool) -> None:
    """Apply all or nothing. Raises PatchError."""
    ordered = reversed(patches) if is_reverse else patches
    options = ["--reverse"] if is_reverse else []
    command = ["git", "apply", "-p1", *options, *(str(patch.path) for patch in ordered)]
    # A repository around the folder, such as one that holds the environment, is not concerned.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    environment.pop("GIT_DIR", None)
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise PatchError("git is needed to change files, and is not installed.") from None
    if ran.returncode:
        raise PatchError(ran.stderr.strip().replace("\n", "; "))
