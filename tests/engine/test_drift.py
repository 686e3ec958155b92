"""The drift benchmark on the CPU engine: the policy is seen to follow what the rounds accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.drift import BIN_S, compare, followed
from tests.engine.benchmark_runs import run_benchmark

pytestmark = pytest.mark.slow


def test_auto_follows_the_accept_length(tmp_path: Path) -> None:
    arms = run_benchmark(
        tmp_path,
        "drift",
        "intel_amx",
        *("--model", "dummy-tiny", "--model-dir", str(tmp_path / "models")),
        *("--levels", "4", "--accepts", "3.4", "1.1", "--phase-s", "6"),
        *("--input-len", "24", "--output-len", "64"),
    )
    for arm, share in (("spec", 0), ("plain", 1)):
        for phase in arms[arm]["4"]:
            assert phase["plain_share"] == [share] * len(phase["plain_share"])
    lengths = [phase["accept_len"] for phase in arms["spec"]["4"]]
    assert lengths == pytest.approx([3.4, 1.1], abs=0.1)
    high, low = arms["auto"]["4"]
    assert low["better"] == "plain" and low["followed_s"] is not None
    assert sum(high["plain_share"]) < sum(low["plain_share"])


def test_followed_is_from_when_on_it_never_leaves() -> None:
    assert followed([0, 0, 0.9, 0.2, 0.8, 1], is_plain=True) == 4 * BIN_S
    assert followed([0, 0.2, None, 1], is_plain=False) is None
    assert followed([1, 0.2, None, 0], is_plain=False) == BIN_S
    assert followed([0.1, 0], is_plain=False) == 0


def test_the_faster_of_the_held_arms_is_what_to_follow() -> None:
    def phase(rate: float) -> list[dict[str, object]]:
        return [{"output_tok_s": rate, "plain_share": [1.0, 1.0]}]

    arms = {"spec": {"8": phase(50)}, "plain": {"8": phase(80)}, "auto": {"8": phase(60)}}
    compare(arms)
    (found,) = arms["auto"]["8"]
    assert (found["better"], found["ratio"], found["followed_s"]) == ("plain", 0.75, 0)
