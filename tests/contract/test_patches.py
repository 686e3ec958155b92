"""Patches for what hooks cannot do: headed, applicable to the pristine release, reversible."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

PATCHES = sorted((Path(__file__).resolve().parents[2] / "patches").glob("*/*.patch"))
HEADERS = ("Subject", "Why", "Applies-to", "Remove-when")


def git_apply(folder: Path, patch: Path, *options: str) -> None:
    command = ["git", "apply", "-p1", *options, str(patch)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_patch_is_headed_and_reverses_exactly(patch: Path, tmp_path: Path) -> None:
    text = patch.read_text()
    heads = [line.split(":")[0] for line in text.splitlines()[: len(HEADERS)]]
    assert tuple(heads) == HEADERS
    assert patch.parent.name in text.splitlines()[2]  # applies to the release of its folder
    spec = importlib.util.find_spec("sglang")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    changed = [line[6:] for line in text.splitlines() if line.startswith("+++ b/")]
    for name in changed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.parent / name, tmp_path / name)
    before = {name: (tmp_path / name).read_bytes() for name in changed}
    git_apply(tmp_path, patch)
    for name in changed:
        assert (tmp_path / name).read_bytes() != before[name]
        compile((tmp_path / name).read_text(), name, "exec")
    git_apply(tmp_path, patch, "--reverse")
    assert {name: (tmp_path / name).read_bytes() for name in changed} == before


def test_there_is_a_patch() -> None:
    assert PATCHES
