"""A fallen ratio fails, a slower machine does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.baseline import main


def result(none: float, static: float, toggle: float, plain: float) -> dict[str, Any]:
    speeds = {"none": none, "static": static, "toggle": toggle, "forced_plain_off": plain}
    return {"arms": {a: {"levels": {"64": {"output_tok_s": s}}} for a, s in speeds.items()}}


def run(tmp_path: Path, new: dict[str, Any], stored: dict[str, Any]) -> int:
    paths = [tmp_path / "new.json", tmp_path / "stored.json"]
    for path, document in zip(paths, (new, stored), strict=True):
        path.write_text(json.dumps(document))
    return main([str(path) for path in paths])


def test_half_the_speed_with_the_same_ratios_passes(tmp_path: Path) -> None:
    assert run(tmp_path, result(50, 35, 49, 49), result(100, 70, 98, 98)) == 0


def test_a_fallen_ratio_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, result(100, 70, 90, 98), result(100, 70, 98, 98)) == 1
    assert "toggle at 64: 0.900, stored 0.980" in capsys.readouterr().out


def test_results_without_a_common_ratio_fail(tmp_path: Path) -> None:
    assert run(tmp_path, {"arms": {}}, result(100, 70, 98, 98)) == 1
