"""What a logged prefill computes on the device."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from spec_toggle.deferred_sync import _prompts
from tests.unit.waits import DEVICE, NoWaits


def prefill(device: str) -> SimpleNamespace:
    """Two prompts of 3 and 2 new tokens, after 4 and 0 that the prefix cache holds."""
    return SimpleNamespace(
        input_ids=torch.tensor([11, 12, 13, 21, 22]).to(device),
        seq_lens=torch.tensor([7, 2]).to(device),
        out_cache_loc=torch.arange(100, 105).to(device),
        extend_lens=[3, 2],
        prefix_lens=[4, 0],
        chunked_req_next_prompt_token=None,
        reqs=[object(), object()],
    )


def test_the_draft_reads_the_token_after_each_position() -> None:
    hidden, tail = torch.zeros(5, 2), torch.tensor([14, 23])
    entries, last, last_on_device = _prompts(prefill("cpu"), hidden, tail)
    assert entries.tokens.tolist() == [12, 13, 14, 22, 23]
    assert entries.positions.tolist() == [4, 5, 6, 0, 1]
    assert entries.slots.tolist() == [100, 101, 102, 103, 104]
    assert last.tolist() == last_on_device.tolist() == [2, 4]
    assert {part.dtype for part in (*entries[1:], last)} == {torch.int64}


def test_the_host_does_not_wait_for_the_prefill() -> None:
    batch = prefill(DEVICE)
    hidden, tail = torch.zeros(5, 2, device=DEVICE), torch.zeros(2, device=DEVICE)
    with NoWaits():
        entries, last, last_on_device = _prompts(batch, hidden, tail)
    assert len(entries.positions) == 5
    assert last.device.type == "cpu" and last_on_device.device.type == DEVICE
