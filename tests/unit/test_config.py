"""Configuration: precedence, checks, and one clear message for each bad value."""

from pathlib import Path

import pytest

from spec_toggle.args import take_config
from spec_toggle.config import ConfigError, DynamicSpecConfig, build_config, load_file

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_flags_win_over_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[dynamic_spec]\nthreshold = 7\ndwell = 3\n")
    config = build_config({"threshold": 9, "dwell": None}, path)
    assert (config.threshold, config.dwell) == (9, 3)
    assert config.draft_sync == DynamicSpecConfig.draft_sync


def test_hysteresis_defaults_to_an_eighth_of_the_threshold() -> None:
    assert DynamicSpecConfig(threshold=32).resume_at == 28
    assert DynamicSpecConfig(threshold=4).resume_at == 4
    assert DynamicSpecConfig(threshold=32, hysteresis=0).resume_at == 32


def test_json_round_trip() -> None:
    config = DynamicSpecConfig(threshold=5, hysteresis=2, dwell=8, draft_sync="off")
    assert DynamicSpecConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"threshold": -1}, ["threshold", "-1", "0"]),
        ({"threshold": 1.5}, ["threshold", "1.5", "whole number"]),
        ({"threshold": True}, ["threshold", "True"]),
        ({"dwell": 0}, ["dwell", "0", "1"]),
        ({"threshold": 4, "hysteresis": 5}, ["hysteresis", "5", "threshold 4", "between"]),
        ({"draft_sync": "lazy"}, ["draft sync", "lazy", "eager"]),
        ({"policy": "best"}, ["policy", "best", "threshold", "auto"]),
        ({"margin": 1.5}, ["margin", "1.5", "0 to 1"]),
        ({"margin": True}, ["margin", "True"]),
        ({"skip_profile": 1}, ["skip_profile", "1", "true or false"]),
    ],
)
def test_bad_values_are_named_with_the_fix(values: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        DynamicSpecConfig(**values)  # type: ignore[arg-type]
    assert all(part in str(raised.value) for part in parts)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"policy": "auto", "threshold": 8}, ["threshold 8", "'auto'", "'threshold'"]),
        ({"policy": "auto", "hysteresis": 0}, ["hysteresis 0", "'auto'"]),
        ({"margin": 0.1}, ["margin 0.1", "'threshold'", "'auto'"]),
        ({"policy": "threshold", "skip_profile": True}, ["skip_profile True", "'auto'"]),
    ],
)
def test_a_setting_of_the_other_policy_is_refused(
    values: dict[str, object], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        build_config(values)
    assert all(part in str(raised.value) for part in [*parts, "has no effect", "Remove it"])


def test_settings_of_auto(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[dynamic_spec]\npolicy = "auto"\nmargin = 0.1\ndwell = 4\n')
    config = build_config({"skip_profile": True}, path)
    assert (config.policy, config.margin, config.dwell) == ("auto", 0.1, 4)
    assert DynamicSpecConfig.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match=r"margin 0\.1 has no effect with policy 'threshold'"):
        build_config({"policy": "threshold"}, path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[dynamic_spec]\ntreshold = 3\n", ["treshold", "threshold"]),
        ("threshold = 3\n", ["threshold", "[dynamic_spec]"]),
        ("[other]\n", ["other", "[dynamic_spec]"]),
        ("[dynamic_spec\n", ["not valid TOML"]),
    ],
)
def test_bad_files_are_named_with_the_fix(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load_file(write(tmp_path / "bad.toml", text))
    assert all(part in str(raised.value) for part in ["bad.toml", *parts])


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml.*cannot be read"):
        load_file("nowhere.toml")


def test_a_setting_without_the_enabling_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="--dynamic-spec-threshold 4 has no effect"):
        take_config({"enable_dynamic_spec": False, "dynamic_spec_threshold": 4})
    assert take_config({"enable_dynamic_spec": False}) is None
    assert take_config({"enable_dynamic_spec": True}) == DynamicSpecConfig()


def test_shipped_configs_load() -> None:
    files = sorted(CONFIGS.glob("*.toml"))
    assert files
    for path in files:
        build_config({}, str(path))
