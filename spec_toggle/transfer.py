"""From the host to the device, without a wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``values``, on the host, on ``device``.

    From pinned memory: the driver may hold the host until a copy from pageable memory has its turn
    in the stream, which is after a forward that runs there.
    """
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


class PinnedCopies(TorchFunctionMode):  # type: ignore[misc]  # torch has no types for it
    """Inside the block, copies of host tensors that need not wait leave from pinned memory."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if function is torch.Tensor.to and named.get("non_blocking"):
            source, *others = args
            device = named.get("device", others[0] if others else None)
            names_device = isinstance(device, str | torch.device)
            if names_device and torch.device(device).type == "cuda" and not source.is_cuda:
                args = (source.pin_memory(), *others)
        return function(*args, **named)
