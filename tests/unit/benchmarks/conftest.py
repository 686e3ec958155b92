"""A small setup, as the benchmark's command line would make it."""

from pathlib import Path

import pytest

from benchmarks.arms import Setup
from benchmarks.models import resolve_models


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(
        models=resolve_models("dummy-8b", None, tmp_path / "models"),
        device="cuda",
        attention="triton",
        spec="chain",
        accept=2.6,
        threshold=24,
        sync="eager",
        input_len=256,
        output_len=256,
        levels=(1, 64, 256),
    )
