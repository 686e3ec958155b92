"""A benchmark as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_benchmark(folder: Path, module: str, attention: str, *arguments: str) -> dict[str, Any]:
    """The arms of the result file that ``benchmarks.<module>`` writes into ``folder``."""
    command = [sys.executable, "-m", f"benchmarks.{module}", "--attention", attention]
    ran = subprocess.run(
        [*command, *arguments, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    (result,) = folder.glob("*.json")
    return dict(json.loads(result.read_text())["arms"])
