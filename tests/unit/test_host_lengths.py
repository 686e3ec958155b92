"""Lengths that the host knows without asking the device."""

from __future__ import annotations

from types import SimpleNamespace as Record

import torch

from spec_toggle.host_lengths import HostLengths


def batch(rows: torch.Tensor, lengths: list[int] | None = None) -> Record:
    on_host = None if lengths is None else torch.tensor(lengths)
    return Record(req_pool_indices_cpu=rows, seq_lens_cpu=on_host)


def known(lengths: HostLengths, rows: torch.Tensor) -> list[int] | None:
    found = lengths.of(batch(rows))
    return None if found is None else found.tolist()


def test_a_plain_step_adds_one_to_the_lengths_it_was_given() -> None:
    lengths, rows = HostLengths(8), torch.tensor([3, 1])
    lengths.after_prefill(batch(rows, [10, 20]))
    assert known(lengths, rows) == [10, 20]
    for step in range(3):
        lengths.after_plain_step(batch(rows, [10 + step, 20 + step]))
        assert known(lengths, rows) == [11 + step, 21 + step]
    assert known(lengths, torch.tensor([1])) == [23], "another batch, with one of them"
    assert known(lengths, rows) == [13, 23]


def test_lengths_after_a_round_are_not_known_whoever_asks() -> None:
    lengths, rows = HostLengths(8), torch.tensor([3, 1])
    lengths.after_prefill(batch(rows, [10, 20]))
    lengths.after_round(batch(rows))
    assert known(lengths, rows) is None
    assert known(lengths, torch.tensor([1, 3])) is None
    lengths.after_plain_step(batch(rows, [13, 21]))  # the host has waited for them
    assert known(lengths, rows) == [14, 22]


def test_rows_of_requests_that_join_and_leave() -> None:
    lengths, first = HostLengths(8), torch.tensor([3, 1])
    lengths.after_prefill(batch(first, [10, 20]))
    lengths.after_plain_step(batch(first, [10, 20]))
    lengths.after_prefill(batch(torch.tensor([3]), [5]))  # the row has another owner
    merged = torch.tensor([1, 3])
    assert known(lengths, merged) == [21, 5]
    lengths.after_plain_step(batch(merged, [21, 5]))
    lengths.after_round(batch(torch.tensor([3])))
    assert known(lengths, torch.tensor([1])) == [22]
    assert known(lengths, merged) is None


def test_without_lengths_of_the_batch_the_table_counts() -> None:
    lengths, rows = HostLengths(8), torch.tensor([2, 4])
    lengths.after_prefill(batch(rows, [7, 9]))
    lengths.after_plain_step(batch(rows))
    assert known(lengths, rows) == [8, 10]
    lengths.after_round(batch(rows))
    lengths.after_plain_step(batch(rows))
    assert known(lengths, rows) is None
