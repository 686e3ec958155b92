"""Copies from the host that need not hold it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_toggle.transfer import PinnedCopies


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What was pinned, on a machine that has nothing to pin it for."""
    sources: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        sources.append(tensor)
        raise RuntimeError("pinned")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return sources


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((), {"device": "cuda"}),
        ((), {"device": torch.device("cuda", 0)}),
        (("cuda",), {}),
        ((torch.device("cuda"), torch.int64), {}),
    ],
)
def test_a_copy_that_need_not_wait_leaves_from_pinned_memory(
    positional: tuple[Any, ...], named: dict[str, Any], pinned: list[torch.Tensor]
) -> None:
    values = torch.tensor([1, 2, 3])
    with pytest.raises(RuntimeError, match="pinned"), PinnedCopies():
        values.to(*positional, **named, non_blocking=True)
    assert pinned[0] is values


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        (("cpu",), {"non_blocking": True}),
        ((torch.int32,), {"non_blocking": True}),
        ((torch.ones(1, dtype=torch.int32),), {"non_blocking": True}),
        ((), {"dtype": torch.int32, "non_blocking": True}),
        (("meta",), {}),
    ],
)
def test_other_copies_are_as_ever(
    positional: tuple[Any, ...], named: dict[str, Any], pinned: list[torch.Tensor]
) -> None:
    values = torch.tensor([1, 2, 3])
    with PinnedCopies():
        moved = values.to(*positional, **named)
    expected = values.to(*positional, **named)
    assert (moved.device, moved.dtype) == (expected.device, expected.dtype)
    assert not pinned


def test_behind_the_block_nothing_is_pinned(pinned: list[torch.Tensor]) -> None:
    with PinnedCopies():
        pass
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda|nvidia"):
        torch.tensor([1]).to("cuda", non_blocking=True)
    assert not pinned
