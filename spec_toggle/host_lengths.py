"""Sequence lengths that the host knows without asking the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spec_toggle.compat import replaced

UNKNOWN = -1


class HostLengths:
    """Committed length of each request, by request-pool index; UNKNOWN after a round.

    How much a round accepts is known on the device first, so backends that plan on the host wait
    for it in every iteration. A plain step adds exactly one token: its successor need not wait.
    """

    def __init__(self, max_requests: int) -> None:
        self._lengths = torch.full((max_requests,), UNKNOWN, dtype=torch.int64)
        # Of the last iteration, until they are in the table; None: not known. A batch that nobody
        # joins or leaves keeps its tensor of rows, and needs no lookup.
        self._rows: torch.Tensor | None = None
        self._current: torch.Tensor | None = None

    def after_prefill(self, batch: Any) -> None:
        known = batch.seq_lens_cpu is not None
        self._set(batch, batch.seq_lens_cpu.to(torch.int64) if known else UNKNOWN)

    def after_plain_step(self, batch: Any) -> None:
        lengths = batch.seq_lens_cpu
        if lengths is None:
            lengths = self._lookup(batch)
            self._set(batch, torch.where(lengths >= 0, lengths + 1, UNKNOWN))
        else:
            self._keep(batch, lengths.to(torch.int64) + 1)

    def after_round(self, batch: Any) -> None:
        self._keep(batch, None)

    def of(self, batch: Any) -> torch.Tensor | None:
        """int64 [batch] on the host, or None if one length is not known. Not to be written to."""
        if batch.req_pool_indices_cpu is self._rows:
            return self._current
        lengths = self._lookup(batch)
        return None if bool((lengths < 0).any()) else lengths

    def _lookup(self, batch: Any) -> torch.Tensor:
        self._settle()
        return self._lengths[batch.req_pool_indices_cpu.long()]

    def _set(self, batch: Any, lengths: torch.Tensor | int) -> None:
        self._settle()
        self._lengths[batch.req_pool_indices_cpu.long()] = lengths

    def _keep(self, batch: Any, lengths: torch.Tensor | None) -> None:
        if batch.req_pool_indices_cpu is not self._rows:
            self._settle()
        self._rows, self._current = batch.req_pool_indices_cpu, lengths

    def _settle(self) -> None:
        if self._rows is not None:
            current = UNKNOWN if self._current is None else self._current
            self._lengths[self._rows.long()] = current
            self._rows = None


def resolve_seq_lens_cpu(
    original: Callable[..., None], future_map: Any, batch: Any, *args: Any, **kwargs: Any
) -> None:
    """``FutureMap.resolve_seq_lens_cpu``: skip the wait for lengths that the host knows."""
    host_lengths = getattr(future_map, "_dynamic_spec_lengths", None)
    is_relayed = getattr(batch.spec_info, "future_indices", None) is not None
    if host_lengths is None or not future_map.needs_cpu_seq_lens or not is_relayed:
        original(future_map, batch, *args, **kwargs)
        return
    lengths = host_lengths.of(batch)
    if lengths is None:
        original(future_map, batch, *args, **kwargs)
        return
    with replaced(future_map, needs_cpu_seq_lens=False):
        original(future_map, batch, *args, **kwargs)
    batch.seq_lens_cpu = lengths
    batch.seq_lens_sum = int(lengths.sum())
