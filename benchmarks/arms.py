"""The arms of the envelope benchmark: one server command line each, equal but for its own flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.models import ModelPair
from spec_toggle.contract import WORKER_BATCH
from spec_toggle.source import installed_source

# Also the default order: arms that a claim compares stand next to each other.
ARMS = (
    "none",
    "static",
    "toggle",
    "auto",
    "none_again",
    "forced_plain_off",
    "forced_plain_deferred",
    "forced_plain_eager",
    "adaptive",
)
SPECULATIONS = {"chain": (3, 1, 4), "tree": (3, 4, 8)}  # steps, topk, draft tokens
# Tokens of a prefill that graphs are captured for: a few of SGLang's sixty, which take a minute.
PREFILL_SIZES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)

# KV slots a request may hold beyond its own tokens: speculation reserves two draft windows.
SLACK_TOKENS = 64


@dataclass(frozen=True)
class Setup:
    """What every server of a run shares."""

    models: ModelPair
    device: str
    attention: str
    spec: str
    accept: float
    threshold: int
    sync: str
    input_len: int
    output_len: int
    levels: tuple[int, ...]
    extra: tuple[str, ...] = ()

    @property
    def steps_topk_tokens(self) -> tuple[int, int, int]:
        return SPECULATIONS[self.spec]

    @property
    def max_total_tokens(self) -> int:
        """KV slots per server: bounded, so that several servers fit on one GPU."""
        needed = max(self.levels) * (self.input_len + self.output_len + SLACK_TOKENS)
        return max(4096, needed)


def check_arm(arm: str, setup: Setup) -> None:
    """Raise ValueError for an arm that cannot be what its name says."""
    if arm not in ARMS:
        raise ValueError(f"unknown arm {arm!r}; known: {', '.join(ARMS)}")
    if arm == "adaptive" and setup.steps_topk_tokens[1] != 1:
        # SGLang only warns and serves static speculation.
        raise ValueError("the arm 'adaptive' needs --spec chain: SGLang ignores it with topk > 1")


def arm_flags(arm: str, setup: Setup) -> list[str]:
    """The flags that tell this arm's server from the one without speculation."""
    if arm in ("none", "none_again"):
        return []
    steps, topk, tokens = setup.steps_topk_tokens
    speculation = [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(setup.models.draft)),
        *("--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(tokens)),
    ]
    own = {
        "static": [],
        "adaptive": ["--speculative-adaptive"],
        "toggle": _toggle_flags(setup.threshold, setup.sync),
        "auto": [
            "--enable-dynamic-spec",
            *("--dynamic-spec-policy", "auto"),
            *("--dynamic-spec-draft-sync", setup.sync),
        ],
        "forced_plain_off": _toggle_flags(0, "off"),
        "forced_plain_deferred": _toggle_flags(0, "deferred"),
        "forced_plain_eager": _toggle_flags(0, "eager"),
    }
    return [*speculation, *own[arm]]


def _toggle_flags(threshold: int, sync: str) -> list[str]:
    return [
        "--enable-dynamic-spec",
        *("--dynamic-spec-threshold", str(threshold)),
        *("--dynamic-spec-draft-sync", sync),
    ]


def common_flags(setup: Setup) -> list[str]:
    """The flags of every server. The radix cache stays on, as users have it: prompts are random."""
    flags = [
        *("--model-path", str(setup.models.target)),
        *("--load-format", "dummy" if setup.models.label.startswith("dummy-") else "auto"),
        "--skip-tokenizer-init",
        *("--attention-backend", setup.attention),
        # Unset, a speculative server would run at most 48 requests.
        *("--max-running-requests", "256"),
        *("--max-total-tokens", str(setup.max_total_tokens)),
        *("--random-seed", "0"),
        *("--stream-interval", "32"),
        *("--decode-log-interval", "200"),
        # Idle servers would take cores from the one that is measured.
        "--sleep-on-idle",
    ]
    return [*flags, *_device_flags(setup), *setup.extra]


def graph_limit() -> str:
    """The setting for the largest batch with a decode graph.

    SGLang 0.5.12 has one limit for all graphs; elsewhere that name is ambiguous.
    """
    is_older = WORKER_BATCH.holds(installed_source())
    return "cuda_graph_max_bs" if is_older else "cuda_graph_max_bs_decode"


def _device_flags(setup: Setup) -> list[str]:
    if setup.device == "cpu":
        return [
            *("--device", "cpu"),
            *("--sampling-backend", "pytorch"),
            *("--dtype", "float32"),
            *("--mem-fraction-static", "0.5"),
        ]
    # SGLang's KV budget is "free now - (1 - fraction) * free before loading", and memory that
    # neighbours take meanwhile counts as used. A fraction near 1 therefore leaves the budget to
    # --max-total-tokens, whoever starts first; a small one would go below zero.
    return [
        *("--" + graph_limit().replace("_", "-"), "256"),
        *("--mem-fraction-static", "0.95"),
    ]


def server_command(
    arm: str, setup: Setup, port: int, python: Sequence[str] = (sys.executable,)
) -> list[str]:
    command = [*python, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    if setup.device == "cpu":
        command = [*python, "-m", "spec_toggle.reference.launch", *command]
    return [*command, *common_flags(setup), *arm_flags(arm, setup)]


def server_environment(setup: Setup) -> dict[str, str]:
    """The same for every arm; only rounds read it. A dummy draft's own acceptance means nothing."""
    if setup.accept <= 0:
        return {}
    return {
        "SGLANG_SIMULATE_ACC_LEN": str(setup.accept),
        # Draws floor or ceil so that the mean is the wanted length, and clamps to the window.
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "fixed",
    }
