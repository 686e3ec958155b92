"""From the host to the device, without a wait."""

from __future__ import annotations

import torch


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``values``, on the host, on ``device``.

    From pinned memory: the driver may hold the host until a copy from pageable memory has its turn
    in the stream, which is after a forward that runs there.
    """
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
