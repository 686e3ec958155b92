"""Tables and bars from a small result file."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.envelope_result import Result
from benchmarks.report import main, render

RATES = {
    "none": {1: 200.0, 64: 8000.0},
    "static": {1: 380.0, 64: 5700.0},
    "toggle": {1: 376.2, 64: 7920.0},
    "forced_plain_off": {64: 7960.0},
    "none_again": {64: 8040.0},
}


def document(rates: dict[str, dict[int, float]], sessions: dict[str, int] | None = None) -> Any:
    spec = {"steps": 3, "topk": 1, "draft_tokens": 4}
    provenance = {"sglang": "0.5.23", "gpu": "H200", "attention_backend": "triton", "model": "m"}
    provenance |= {"simulated_accept": 2.6, "input_len": 256, "output_len": 256, "commit": "c"}
    arms = {
        arm: {
            "levels": {
                str(level): {
                    "output_tok_s": rate,
                    "tpot_ms_p50": 1000 * level / rate,
                    "session": (sessions or {}).get(arm, 0),
                }
                for level, rate in levels.items()
            }
        }
        for arm, levels in rates.items()
    }
    provenance |= {"dirty": False, "spec": spec}
    return {"benchmark": "envelope", "provenance": provenance, "arms": arms}


def write(path: Path, changes: dict[str, dict[int, float]]) -> str:
    path.write_text(json.dumps(document({**RATES, **changes})))
    return str(path)


def test_tables() -> None:
    text = render(Result(document(RATES), "r"))
    assert "| 1 | 200 | 380 | 1.90 | - | - | 376 | 1.88 | 380 | 0.990 |" in text
    assert "| 64 | 8000 | 5700 | 0.71 | - | - | 7920 | 0.99 | 8000 | 0.990 |" in text
    assert "| 64 | 8000 | 8040 | 1.005 | none and none_again | 7960 | 0.993 | 1.008 |" in text


def test_off_tax_is_taken_within_one_session() -> None:
    later = {"forced_plain_off": 1, "none_again": 1}
    result = Result(document(RATES, later), "r")
    assert result.ratio("forced_plain_off", "none", 64) == pytest.approx(7960 / 8040)
    same = Result(document(RATES, {"forced_plain_off": 1}), "r")
    assert same.ratio("forced_plain_off", "none", 64) == pytest.approx(7960 / 8000)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0),
        ({"toggle": {1: 372.0, 64: 7920.0}}, 1),
        ({"forced_plain_off": {64: 7900.0}}, 1),
        ({"forced_plain_off": {}, "toggle": {}}, 1),  # nothing to check is no pass
    ],
)
def test_check(
    changes: dict[str, dict[int, float]],
    expected: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([write(tmp_path / "r.json", changes), "--check"]) == expected
    assert ("missed" in capsys.readouterr().out) == bool(expected)


def test_without_check_a_missed_bar_is_only_shown(tmp_path: Path) -> None:
    assert main([write(tmp_path / "r.json", {"toggle": {1: 1.0}})]) == 0


@pytest.mark.parametrize("text", ["[]", "{", json.dumps({"benchmark": "grid", "arms": {}})])
def test_another_file_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.json").write_text(text)
    assert main([write(tmp_path / "r.json", {}), str(tmp_path / "grid.json")]) == 2
    assert "grid.json is not" in capsys.readouterr().err


def test_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    main([write(tmp_path / "r.json", {}), "--out-dir", str(tmp_path / "plots")])
    assert (tmp_path / "plots" / "r.png").stat().st_size > 1000
