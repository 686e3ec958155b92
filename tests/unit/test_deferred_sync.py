"""What a logged prefill computes on the device."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.speculative import eagle_worker_v2

from spec_toggle import deferred_sync
from spec_toggle.compat.draft import prefill_method
from spec_toggle.deferred_sync import DeferredSync, _prompts
from spec_toggle.transfer import to_device
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


class HostValues:
    """A host tensor as ``to_device`` sees it, on a machine without a GPU."""

    def __init__(self, is_pinned: bool = False) -> None:
        self.is_pinned = is_pinned

    def pin_memory(self) -> HostValues:
        return HostValues(is_pinned=True)

    def to(self, device: torch.device, non_blocking: bool) -> tuple[str, bool, bool]:
        return device.type, self.is_pinned, non_blocking


@pytest.mark.parametrize(("device", "is_pinned"), [("cuda", True), ("cpu", False)])
def test_a_copy_to_a_gpu_starts_in_pinned_memory(device: str, is_pinned: bool) -> None:
    values: Any = HostValues()
    assert to_device(values, torch.device(device)) == (device, is_pinned, True)


# What the draft's prefill takes after batch, hidden states and tokens: 0.5.23; 0.5.12 with overlap;
# 0.5.12 without.
OTHERS = (
    ("mm_input_embeds", "kv_loc_plan"),
    ("mm_input_embeds",),
    ("seq_lens_cpu", "mm_input_embeds"),
)


def test_the_installed_draft_prefill_is_a_known_one() -> None:
    draft = eagle_worker_v2.EagleDraftWorker
    method = getattr(draft, prefill_method(SimpleNamespace(draft_worker=draft)))
    assert tuple(inspect.signature(method).parameters)[4:] in OTHERS


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("has_embeddings", [True, False])
def test_a_prefill_with_embeddings_is_upstreams(
    has_embeddings: bool, by_name: bool, others: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has tokens alone: what an image gives the draft cannot be written from it."""
    given: dict[str, Any] = dict.fromkeys(others)
    given["mm_input_embeds"] = torch.zeros(5, 2) if has_embeddings else None
    calls: list[str] = []
    sync: Any = object.__new__(DeferredSync)
    sync._arguments = ("batch", "target_hidden_states", "next_token_ids", *others)
    sync._log = SimpleNamespace(
        has_room=lambda count: True, forget=lambda rows: calls.append("forget")
    )
    sync._worker = SimpleNamespace(draft_worker=object())
    monkeypatch.setattr(sync, "_flush", lambda: calls.append("flush"))
    monkeypatch.setattr(sync, "_take_prompts", lambda rows, prompts: calls.append("log"))
    monkeypatch.setattr(deferred_sync, "_blank_draft_input", lambda *_: "blank")
    monkeypatch.setattr(deferred_sync, "host_rows", lambda batch: torch.arange(2))

    def original(*_: Any, **__: Any) -> str:
        calls.append("original")
        return "upstream's"

    arguments = (original, prefill("cpu"), torch.zeros(5, 2), torch.tensor([14, 23]))
    positional, named = ((), given) if by_name else (given.values(), {})
    result = sync._prefill(*arguments, *positional, **named)
    if has_embeddings:
        assert (calls, result) == (["flush", "original", "forget"], "upstream's")
    else:
        assert (calls, result) == (["log"], "blank")
