"""Saved profiles, the plan of a new one, and the command that shows them."""

import json
from pathlib import Path

import pytest

from spec_toggle import profile_store
from spec_toggle.cli import main
from spec_toggle.policy import Mode
from spec_toggle.profile_plan import Axes, fill_table, plan_axes
from spec_toggle.profile_report import accept_lengths, boundary
from spec_toggle.profile_store import Profile, ProfileError, load, profile_path, read_profile, save
from tests.unit.auto import table

KEY = {"gpu": "H200", "model": "m", "sglang": "0.5.23", "speculative_num_steps": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPEC_TOGGLE_CACHE", str(tmp_path))
    return tmp_path


def test_round_trip_by_key() -> None:
    assert load(KEY) is None
    save(KEY, table())
    assert load(KEY) == table()
    assert load({**KEY, "gpu": "B200"}) is None
    assert read_profile(profile_path(KEY)).key == KEY
    assert [path.suffix for path in profile_path(KEY).parent.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{}", '{"key": {}, "time": "", "table": {}}', "[1]"])
def test_a_broken_file_counts_as_none(text: str, caplog: pytest.LogCaptureFixture) -> None:
    save(KEY, table())
    profile_path(KEY).write_text(text)
    assert load(KEY) is None
    assert profile_path(KEY).name in caplog.text
    with pytest.raises(ProfileError, match=profile_path(KEY).name):
        read_profile(profile_path(KEY))


def test_a_disk_that_cannot_be_written_only_warns(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "profiles").write_text("a file where the folder should be")
    save(KEY, table())
    assert "was not saved" in caplog.text


def test_the_boundary_of_the_table() -> None:
    costs = table()
    for accept in (1.6, 2.5, 3.9):
        size = boundary(costs, 256, accept)
        assert costs.break_even(size, 256) < accept <= costs.break_even(size + 1, 256)
    assert boundary(costs, 256, 1.2) == 0 and boundary(costs, 32768, 2.5) == 256
    assert accept_lengths(Profile(KEY, costs, "")) == [1.5, 2.0, 2.5, 3.0, 3.5, 4.0]


def test_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--list"]) == 0
    assert "No profiles" in capsys.readouterr().out
    save(KEY, table())
    assert main(["profile", "--list"]) == 0
    name = profile_path(KEY).stem
    assert name in capsys.readouterr().out.replace("\n", "")
    assert main(["profile", name[:6]]) == 0
    shown = capsys.readouterr().out
    assert "5.00 / 7.50  1.50" in shown and "never" in shown and "256+" in shown
    pytest.importorskip("matplotlib")
    assert main(["profile", name, "--plot", str(cache / "p.png")]) == 0
    assert (cache / "p.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("argv", "part"),
    [([], "--list"), (["nothing"], "no such file"), (["bad.json"], "not a profile")],
)
def test_errors_are_one_line_and_exit_2(
    argv: list[str],
    part: str,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(cache)
    (cache / "bad.json").write_text(json.dumps({"key": 1}))
    assert main(["profile", *argv]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("spec-toggle: error: ") and part in lines[0]


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEC_TOGGLE_CACHE")
    assert profile_store.profile_dir() == Path.home() / ".cache" / "spec-toggle" / "profiles"


def test_axes_and_filling() -> None:
    assert plan_axes(48, 40_000) == Axes((1, 2, 4, 8, 16, 32, 48), (256, 2896, 32768))
    assert plan_axes(1, 400) == Axes((1,), (256,))
    axes = Axes((1, 2), (10, 100))
    found = {(mode, size, 10): 2.0 * size for mode in Mode for size in (1, 2)}
    found |= {(mode, 1, 100): 3.0 for mode in Mode}
    filled = fill_table(axes, found, 8)
    assert filled.plain_ms == ((2.0, 4.0), (3.0, 6.0))  # 2 + 1 for the context, 4 + 2
    assert filled.round_count == ((8, 8), (8, 0))


def test_missing_cells_grow_by_the_kv_they_read() -> None:
    """As measured on an H200 at batch size 128 and 8160 tokens: 52.8 and 561 ms."""
    axes = Axes((8, 64, 128), (256, 2046, 16366))
    ms = {
        Mode.PLAIN: {(8, 256): 5.0, (64, 256): 6.18, (128, 256): 7.49, (64, 2046): 12.01},
        Mode.SPEC: {(8, 256): 7.79, (64, 256): 21.43, (128, 256): 39.18, (64, 2046): 84.81},
    }
    long = {Mode.PLAIN: {(8, 2046): 5.76, (8, 16366): 11.38}}
    long[Mode.SPEC] = {(8, 2046): 15.31, (8, 16366): 74.95}
    found = {(mode, *cell): t for mode in Mode for cell, t in {**ms[mode], **long[mode]}.items()}
    filled = fill_table(axes, found, 8)
    assert filled.ms(Mode.PLAIN, 128, 8160) == pytest.approx(52.8, rel=0.1)
    assert filled.ms(Mode.SPEC, 128, 8160) == pytest.approx(561, rel=0.05)
    assert not filled.is_measured(Mode.PLAIN, 128, 8160)


def test_missing_cells_cost_little_more_while_the_gpu_has_room() -> None:
    """An H200 with triton: four requests read their KV in the time of one, eight take twice it."""
    axes = Axes((1, 2, 4, 8, 16), (256, 2046, 16366))
    rows = {256: (6.6, 6.8, 7.0, 7.9, 9.7), 2046: (10.6, 10.8, 10.8, 15.3, 24.1), 16366: (41, 41)}
    found = {
        (mode, size, context): ms
        for context, row in rows.items()
        for size, ms in zip(axes.batch_sizes, row, strict=False)
        for mode in Mode
    }
    filled = fill_table(axes, found, 8)
    assert filled.ms(Mode.SPEC, 4, 8160) == pytest.approx(23.6, rel=0.05)  # as measured there
    assert filled.ms(Mode.SPEC, 16, 8160) == pytest.approx(71.3, rel=0.05)


def test_a_row_without_any_measurement_goes_on_from_the_rows_above() -> None:
    axes = Axes((1, 64), (256, 2048, 16384))
    found = {
        (mode, *cell): ms for mode in Mode for cell, ms in {(1, 256): 5.0, (64, 256): 6.0}.items()
    }
    found |= {(mode, 64, 2048): 8.0 for mode in Mode}
    found |= {(mode, 1, 2048): 4.9 for mode in Mode}  # noise
    rows = fill_table(axes, found, 8).plain_ms
    assert rows[2][0] == 4.9, "never less than at a shorter context"
    assert rows[2][1] == pytest.approx(6 + 2 * 9)  # 2 ms for 1792 tokens, so 18 for 16128
