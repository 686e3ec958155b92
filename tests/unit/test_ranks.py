"""Two ranks of one tensor-parallel group, as threads that meet in fake collectives."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import spec_toggle
from spec_toggle.config import DynamicSpecConfig
from spec_toggle.controller import Controller
from spec_toggle.policy import Mode
from spec_toggle.ranks import agree, agree_on_configuration, keep_sampled_tokens
from spec_toggle.steering import Force, Order
from spec_toggle.telemetry import Telemetry
from tests.unit.auto import load, observations, teach

TIMEOUT_S = 10
# Modules whose state decides what a rank runs. `live_costs` times, but on the first rank only.
DECIDING = (
    *("acceptance", "controller", "cost", "draft_extend", "draft_kv", "goodput"),
    *("host_lengths", "load", "pending_log", "plain_step", "policy", "steering", "worker"),
)
SIZES = [1, 3, 9, 70, 70, 70, 8, 2, *[2] * 40, 0, 64, 1] * 4


class Meeting:
    """What ``torch.distributed`` offers to two ranks; each waits for the other, as there."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=TIMEOUT_S)
        self._slots: list[Any] = [None, None]

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self._barrier.wait()
        gathered = list(self._slots)
        self._barrier.wait()
        return gathered


class Group:
    """A ``GroupCoordinator`` as one rank sees it."""

    world_size = 2

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.cpu_group = (meeting, rank)

    def broadcast(self, tokens: list[int], src: int) -> None:
        meeting, rank = self.cpu_group
        tokens[:] = meeting.gather(rank, list(tokens))[src]


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    def all_gather_object(found: list[Any], value: Any, group: tuple[Meeting, int]) -> None:
        meeting, rank = group
        found[:] = meeting.gather(rank, value)

    torch = ModuleType("torch")
    vars(torch)["distributed"] = SimpleNamespace(all_gather_object=all_gather_object)
    monkeypatch.setitem(sys.modules, "torch", torch)
    meeting = Meeting()
    return [SimpleNamespace(tp_group=Group(meeting, rank)) for rank in range(2)]


def on_both(act: Callable[[int], Any]) -> list[Any]:
    """The result of ``act`` on each rank, or what it raised."""
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(act, rank) for rank in range(2)]
        return [future.exception() or future.result() for future in futures]


def test_ranks_with_equal_values_agree(schedulers: list[Any]) -> None:
    assert on_both(lambda rank: agree(schedulers[rank], "mode", Mode.PLAIN)) == [None, None]


def test_a_difference_stops_every_rank_and_says_what_each_has(schedulers: list[Any]) -> None:
    raised = on_both(lambda rank: agree(schedulers[rank], "mode", list(Mode)[rank]))
    for error in raised:
        assert isinstance(error, RuntimeError)
        assert "differ in their mode: rank 0: Mode.SPEC; rank 1: Mode.PLAIN" in str(error)


def test_nodes_with_different_flags_stop_the_launch(schedulers: list[Any]) -> None:
    configs = [DynamicSpecConfig(threshold=threshold).to_json() for threshold in (24, 32)]
    raised = on_both(lambda rank: agree_on_configuration(schedulers[rank], (configs[rank],)))
    for error in raised:
        assert isinstance(error, RuntimeError)
        assert '"threshold": 24' in str(error) and "Give every node the same flags" in str(error)


@pytest.mark.parametrize("is_greedy", [False, True])
def test_sampled_tokens_are_those_of_the_first_rank(schedulers: list[Any], is_greedy: bool) -> None:
    tokens = [[7, 8], [7, 9]]
    on_both(lambda rank: keep_sampled_tokens(schedulers[rank].tp_group, tokens[rank], is_greedy))
    assert tokens == [[7, 8], [7, 9 if is_greedy else 8]]


@pytest.mark.parametrize("policy", ["threshold", "auto"])
def test_a_rank_that_reports_decides_like_one_that_does_not(policy: str) -> None:
    ticks = iter(range(1_000_000))
    modes: list[list[Mode]] = []
    for telemetry in (Telemetry(clock=lambda: float(next(ticks))), None):
        watched = observations() if policy == "auto" else None
        if watched is not None:
            teach(watched, 2.6)
        controller = Controller.from_config(DynamicSpecConfig(policy=policy), telemetry, watched)
        modes.append([])
        for step, size in enumerate(SIZES):
            if step == 20:
                controller.steer(Order({"dwell": 5}, Force(Mode.PLAIN, until=9.0)))
            if step == 30:
                controller.steer(Order(release=9.0))
            if size == 0:
                controller.idle()
            else:
                controller.begin_iteration(load(size))
            modes[-1].append(controller.mode)
    assert modes[0] == modes[1] and set(modes[0]) == set(Mode)


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_has_neither_clock_nor_dice(name: str) -> None:
    tree = ast.parse((Path(spec_toggle.__file__).parent / f"{name}.py").read_text())
    imported = {
        alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    }
    imported |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not imported & {"time", "datetime", "random", "secrets", "uuid", "threading", "os"}
