"""Finding the operations at which the host waits for a device, on a machine that has none."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Stands in for a GPU: its tensors hold nothing, and asking for a value of theirs raises.
DEVICE = "meta"


class HostWait(AssertionError):
    """The host would wait for all work that the device has been given."""


class NoWaits(TorchDispatchMode):
    """Inside, copies from the host to DEVICE raise HostWait unless they are ``non_blocking``."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        if func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking"):
            devices.add(torch.device(kwargs.get("device") or next(iter(devices))).type)
        # A scalar that is assigned by index comes from the host, which "meta" does not show.
        is_scalar = func is torch.ops.aten.index_put_.default and args[2].ndim == 0
        if len(devices) > 1 or (is_scalar and devices == {DEVICE}):
            raise HostWait(f"{func} copies from the host to the device, and waits for that")
        return func(*args, **kwargs)
