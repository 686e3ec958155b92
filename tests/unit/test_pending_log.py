"""The log of pending draft tokens: order, bookkeeping, bounds."""

from __future__ import annotations

import pytest
import torch

from spec_toggle.pending_log import NONE, Entries, PendingLog
from tests.unit.waits import DEVICE, HostWait, NoWaits


def entries(*positions: int) -> Entries:
    """Entries whose every field tells their position."""
    at = torch.tensor(positions)
    return Entries(at.float().unsqueeze(1).repeat(1, 2), at + 100, at + 200, at)


def rows(*indices: int) -> torch.Tensor:
    return torch.tensor(indices)


@pytest.fixture
def log() -> PendingLog:
    return PendingLog(
        capacity=8, max_requests=6, max_slots=300, width=2, dtype=torch.float32, device="cpu"
    )


def test_pending_entries_come_back_once_and_in_order(log: PendingLog) -> None:
    log.append_step(rows(1, 2), entries(10, 20))
    log.append_step(rows(2, 1), entries(21, 11))
    assert log.pending == 4
    taken = log.take_pending()
    assert taken.positions.tolist() == [10, 20, 21, 11]
    assert taken.tokens.tolist() == [110, 120, 121, 111]
    assert taken.slots.tolist() == [210, 220, 221, 211]
    assert taken.hidden[:, 0].tolist() == [10, 20, 21, 11]
    assert log.pending == 0 and len(log.take_pending().tokens) == 0


def test_newest_entries_outlive_their_writing_until_the_next_step(log: PendingLog) -> None:
    log.append_step(rows(1, 2), entries(10, 20))
    log.take_pending()
    hidden, tokens = log.gather(log.newest(rows(2, 1)))
    assert tokens.tolist() == [120, 110] and hidden[:, 1].tolist() == [20, 10]
    log.append_step(rows(2), entries(21))
    assert log.newest(rows(1, 2)).tolist() == [NONE, 0]  # the step starts the log anew


def test_a_prefill_is_pending_and_its_last_position_is_newest(log: PendingLog) -> None:
    log.append_step(rows(1), entries(10))
    log.append(rows(3, 4), entries(5, 6, 7), last=torch.tensor([1, 2]))
    assert log.pending == 4
    assert log.newest(rows(1, 3, 4)).tolist() == [0, 2, 3]
    assert log.take_pending().positions.tolist() == [10, 5, 6, 7]


def test_a_prefill_that_is_synced_is_not_pending(log: PendingLog) -> None:
    log.append_step(rows(1), entries(10))
    log.take_pending()
    log.append_synced(rows(4), entries(6))
    assert log.pending == 0
    assert (log.newest(rows(1, 4, 5)) != NONE).tolist() == [True, True, False]


def test_an_entry_gives_way_to_a_newer_one_of_its_slot(log: PendingLog) -> None:
    log.append_step(rows(1, 2), entries(10, 20))
    log.append(rows(3), entries(10, 30), last=torch.tensor([1]))  # the slot of row 1, given away
    log.append_step(rows(2, 3), entries(10, 31))
    assert log.take_pending().slots.tolist() == [0, 220, 0, 230, 210, 231]
    log.append_step(rows(2), entries(10))
    assert log.take_pending().slots.tolist() == [210]


def test_room_is_bounded_and_said(log: PendingLog) -> None:
    for step in range(3):
        log.append_step(rows(1, 2), entries(step, step))
    assert log.has_room(2) and not log.has_room(3)
    with pytest.raises(AssertionError):
        log.append_step(rows(1, 2, 3), entries(7, 7, 7))
    log.take_pending()
    log.append_step(rows(1, 2, 3), entries(7, 7, 7))
    assert log.pending == 3


def test_forgetting_every_request_empties_the_log(log: PendingLog) -> None:
    log.append_step(rows(1, 2), entries(10, 20))
    log.take_pending()
    log.forget(rows(1))
    assert not log.is_empty and log.newest(rows(1, 2)).tolist() == [NONE, 1]
    log.forget(rows(2))
    assert log.is_empty


def test_the_check_tells_a_wrong_position_and_a_moved_slot(log: PendingLog) -> None:
    table = torch.zeros((6, 40), dtype=torch.int32)
    table[1, 10], table[2, 20] = 210, 220
    log.append_step(rows(1, 2), entries(10, 20))
    log.check(rows(1, 2), torch.tensor([11, 21]), table)
    with pytest.raises(AssertionError):
        log.check(rows(1, 2), torch.tensor([11, 22]), table)
    table[2, 20] = 7
    with pytest.raises(AssertionError):
        log.check(rows(1, 2), torch.tensor([11, 21]), table)


def test_the_host_never_waits_for_the_device() -> None:
    """A wait drains the device: with overlapped scheduling it then idles for a host iteration."""
    with NoWaits():
        log = PendingLog(8, 6, 300, 2, torch.float32, DEVICE)
        at = torch.arange(2, device=DEVICE)
        step = Entries(torch.zeros((2, 2), device=DEVICE), at, at, at)
        log.append_step(rows(1, 2), step)
        log.append(rows(3), step, last=torch.tensor([1]))
        assert len(log.take_pending().tokens) == 4
        log.append_synced(rows(4, 5), step)
        log.gather(log.newest(rows(1, 4)).to(DEVICE, non_blocking=True))
        log.forget(rows(1, 2, 3, 4, 5))
        assert log.is_empty


def test_waits_are_found() -> None:
    tensor, at = torch.zeros(4, device=DEVICE), torch.arange(2, device=DEVICE)
    with NoWaits():
        with pytest.raises(HostWait):
            tensor[at] = -1
        with pytest.raises(HostWait):
            torch.ones(2).to(DEVICE)
        torch.ones(2).to(DEVICE, non_blocking=True)
    with pytest.raises(RuntimeError):
        bool((tensor > 0).any())


def test_newest_entries_after_steps_that_nobody_asked_about(log: PendingLog) -> None:
    log.append(rows(0, 5), entries(1, 2), rows(0, 1))
    log.append_step(rows(1, 2), entries(10, 20))
    log.append_step(rows(2, 1), entries(21, 11))
    assert log.newest(rows(0, 1, 2, 5)).tolist() == [NONE, 5, 4, NONE]
    log.append_step(rows(2), entries(22))
    log.append(rows(4), entries(7), rows(0))
    assert log.newest(rows(1, 2, 4)).tolist() == [NONE, 6, 7]
    log.take_pending()
    log.append_step(rows(3), entries(30))
    log.clear()
    assert log.newest(rows(2, 3, 4)).tolist() == [NONE, NONE, NONE]
