"""Server command lines: equal but for the arm's own flags."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.arms import ARMS, Setup, check_arm, server_command, server_environment
from benchmarks.models import resolve_models

SPECULATIVE = [arm for arm in ARMS if not arm.startswith("none")]


def flags(arm: str, setup: Setup) -> list[str]:
    return server_command(arm, setup, 30000, python=("python3",))


@pytest.mark.parametrize("arm", ARMS)
def test_arms_extend_the_command_without_speculation(arm: str, setup: Setup) -> None:
    base = flags("none", setup)
    assert flags(arm, setup)[: len(base)] == base
    own = flags(arm, setup)[len(base) :]
    assert ("--speculative-algorithm" in own) == (arm in SPECULATIVE)
    assert ("--speculative-adaptive" in own) == (arm == "adaptive")
    assert ("--enable-dynamic-spec" in own) == (
        arm.startswith("forced") or arm in ("toggle", "auto")
    )


def test_no_speculative_flag_in_the_command_without_speculation(setup: Setup) -> None:
    for arm in ("none", "none_again"):
        options = [f for f in flags(arm, setup) if f.startswith("--")]
        assert not [f for f in options if "spec-" in f or "speculative" in f]


@pytest.mark.parametrize(
    ("arm", "threshold", "sync"),
    [
        ("toggle", "24", "eager"),
        ("forced_plain_off", "0", "off"),
        ("forced_plain_deferred", "0", "deferred"),
        ("forced_plain_eager", "0", "eager"),
    ],
)
def test_toggle_flags(arm: str, threshold: str, sync: str, setup: Setup) -> None:
    command = flags(arm, setup)
    assert command[command.index("--dynamic-spec-threshold") + 1] == threshold
    assert command[command.index("--dynamic-spec-draft-sync") + 1] == sync


def test_tree_and_chain(setup: Setup) -> None:
    command = flags("static", dataclasses.replace(setup, spec="tree"))
    values = [
        command[command.index(f"--speculative-{name}") + 1]
        for name in ("num-steps", "eagle-topk", "num-draft-tokens")
    ]
    assert values == ["3", "4", "8"]


def test_adaptive_is_refused_where_sglang_would_ignore_it(setup: Setup) -> None:
    check_arm("adaptive", setup)
    with pytest.raises(ValueError, match="topk"):
        check_arm("adaptive", dataclasses.replace(setup, spec="tree"))
    with pytest.raises(ValueError, match="unknown arm"):
        check_arm("statik", setup)


def test_pool_fits_the_largest_level(setup: Setup) -> None:
    assert setup.max_total_tokens == 256 * (256 + 256 + 64)
    command = flags("none", setup)
    assert command[command.index("--max-total-tokens") + 1] == str(setup.max_total_tokens)


def test_cpu_servers_run_under_the_reference_engine(setup: Setup) -> None:
    command = flags("none", dataclasses.replace(setup, device="cpu", attention="intel_amx"))
    assert command[:5] == ["python3", "-m", "spec_toggle.reference.launch", "python3", "-m"]
    assert "--cuda-graph-max-bs-decode" not in command


def test_accept_length_zero_simulates_nothing(setup: Setup) -> None:
    assert server_environment(setup)["SGLANG_SIMULATE_ACC_LEN"] == "2.6"
    assert server_environment(dataclasses.replace(setup, accept=0.0)) == {}


def test_dummy_models_are_config_files(tmp_path: Path) -> None:
    pair = resolve_models("dummy-8b", None, tmp_path)
    target, draft = (json.loads((p / "config.json").read_text()) for p in pair[1:3])
    assert target["architectures"] == ["LlamaForCausalLM"]
    assert (target["num_hidden_layers"], draft["num_hidden_layers"]) == (32, 1)
    assert draft["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (draft["draft_vocab_size"], draft["vocab_size"]) == (32000, 128256)
    assert "draft_vocab_size" not in target


def test_real_model_needs_a_draft(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--draft"):
        resolve_models(str(tmp_path), None, tmp_path)
