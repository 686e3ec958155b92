"""The flags on SGLang's own parser, and the refusals at launch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.harness import activate_reference_engine

activate_reference_engine()

BASE = ["--model-path", "dummy", "--enable-dynamic-spec"]
EAGLE = [*BASE, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "draft"]


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    yield
    os.environ.pop("SPEC_TOGGLE_CONFIG", None)


def parse(argv: list[str]) -> Any:
    from sglang.srt.server_args import prepare_server_args

    return prepare_server_args(argv)


def test_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out
    for flag in ("enable-dynamic-spec", *(f"dynamic-spec-{name}" for name in NAMES)):
        assert f"--{flag}" in shown


NAMES = (
    "policy",
    "threshold",
    "hysteresis",
    "dwell",
    "margin",
    "skip-profile",
    "draft-sync",
    "config",
)


def test_flags_reach_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[dynamic_spec]\nthreshold = 5\ndwell = 2\n")
    args = parse([*EAGLE, "--dynamic-spec-config", str(path), "--dynamic-spec-threshold", "6"])
    config = args._dynamic_spec_config
    assert (config.threshold, config.dwell, config.resume_at) == (6, 2, 6)


def test_flags_of_auto(capsys: pytest.CaptureFixture[str]) -> None:
    auto = [*EAGLE, "--dynamic-spec-policy", "auto"]
    config = parse([*auto, "--dynamic-spec-margin", "0.1", "--dynamic-spec-skip-profile"])
    config = config._dynamic_spec_config
    assert (config.policy, config.margin, config.skip_profile) == ("auto", 0.1, True)
    assert parse(EAGLE)._dynamic_spec_config.policy == "threshold"
    with pytest.raises(SystemExit) as stopped:
        parse([*auto, "--dynamic-spec-threshold", "8"])
    assert stopped.value.code == 2
    assert "threshold 8 has no effect with policy 'auto'" in capsys.readouterr().err


def test_engine_takes_keywords() -> None:
    from sglang.srt.entrypoints.engine import Engine

    args = Engine.server_args_class(
        model_path="dummy",
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path="draft",
        enable_dynamic_spec=True,
        dynamic_spec_threshold=3,
    )
    assert args._dynamic_spec_config.threshold == 3
    with pytest.raises(ValueError, match="needs an EAGLE draft"):
        Engine.server_args_class(model_path="dummy", enable_dynamic_spec=True)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (BASE, ["no --speculative-algorithm", "EAGLE3"]),
        ([*BASE, "--speculative-algorithm", "NGRAM"], ["'NGRAM'", "EAGLE3"]),
        ([*BASE, "--speculative-algorithm", "EAGLE3"], ["--speculative-draft-model-path"]),
        (
            [
                *BASE,
                "--speculative-algorithm",
                "EAGLE3",
                "--speculative-draft-model-path",
                "/no/such/draft",
            ],
            ["/no/such/draft", "no such folder"],
        ),
        ([*EAGLE, "--speculative-adaptive"], ["--speculative-adaptive", "decide"]),
        ([*EAGLE, "--attn-dp-size", "2"], ["--attn-dp-size 2", "disagree"]),
        ([*EAGLE, "--pp-size", "2"], ["--pp-size 2"]),
        ([*EAGLE, "--enable-multi-layer-eagle"], ["--enable-multi-layer-eagle"]),
        ([*EAGLE, "--enable-two-batch-overlap"], ["--enable-two-batch-overlap"]),
        ([*EAGLE, "--disaggregation-mode", "prefill"], ["--disaggregation-mode prefill"]),
        ([*EAGLE, "--enable-lora"], ["--enable-lora", "adapter"]),
        ([*EAGLE, "--enable-pdmux"], ["--enable-pdmux"]),
        ([*EAGLE, "--dcp-size", "2"], ["--dcp-size 2"]),
        ([*EAGLE, "--dynamic-spec-threshold", "-3"], ["threshold -3", "from 0"]),
        ([*EAGLE, "--dynamic-spec-dwell", "0"], ["dwell 0", "from 1"]),
        ([*EAGLE, "--dynamic-spec-config", "absent.toml"], ["absent.toml", "cannot be read"]),
        (
            ["--model-path", "dummy", "--dynamic-spec-dwell", "3"],
            ["--dynamic-spec-dwell 3", "--enable-dynamic-spec"],
        ),
    ],
)
def test_refusals_stop_the_launch_with_one_line(
    argv: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(argv)
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("spec-toggle: error: ")
    assert all(part in lines[0] for part in parts), lines[0]


def test_unknown_draft_sync_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse([*EAGLE, "--dynamic-spec-draft-sync", "lazy"])
    assert stopped.value.code == 2
    assert "lazy" in capsys.readouterr().err


def test_an_sglang_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    monkeypatch.delattr(EAGLEWorkerV2, "forward_batch_generation")
    with pytest.raises(SystemExit) as stopped:
        parse(EAGLE)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "does not fit SGLang" in message and "forward_batch_generation is missing" in message


@pytest.mark.parametrize(
    ("values", "device", "part"),
    [
        ({"model_is_mrope": True}, "cuda", "multimodal positions"),
        ({"is_hybrid": True}, "cuda", "recurrent state"),
        ({}, "npu", "--device npu"),
    ],
)
def test_targets_and_devices_that_cannot_decode_natively_are_refused(
    values: dict[str, bool], device: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from spec_toggle.config import ConfigError
    from spec_toggle.support import check_model

    monkeypatch.setattr(
        "sglang.srt.configs.hybrid_arch.mambaish_config",
        lambda config: object() if values.get("is_hybrid") else None,
    )
    config = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["SomeModel"]),
        model_is_mrope=values.get("model_is_mrope", False),
    )
    with pytest.raises(ConfigError, match=part):
        check_model(config, device)


def test_a_launch_beyond_what_was_run_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from spec_toggle import adapters
    from spec_toggle.reference.tiny_pair import build_tiny_pair

    # Not by caplog: SGLang sets up logging anew while it parses.
    warnings: list[str] = []
    monkeypatch.setattr(adapters.logger, "warning", lambda text, *v: warnings.append(text % v))
    adapters.warn_untested.cache_clear()
    pair = build_tiny_pair()
    models = ["--model-path", str(pair.target), "--speculative-draft-model-path", str(pair.draft)]
    engine = ["--device", "cpu", "--attention-backend", "intel_amx", "--mem-fraction-static", "0.5"]
    for size in ("2", "4", "4"):
        args = parse([*EAGLE[2:-2], *models, *engine, "--tp-size", size])
        args.resolve_once()
        args.check_server_args()
    (warning,) = warnings
    assert "UNTESTED" in warning and "--tp-size 4 was never run" in warning
