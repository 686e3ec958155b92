"""Tokens of plain steps whose draft KV is still to be written, in the order they were produced."""

from __future__ import annotations

from typing import NamedTuple

import torch

NONE = -1


class Entries(NamedTuple):
    """What the draft needs to write its KV for n tokens, all on the device.

    ``hidden``: the target's hidden states [n, width] at ``positions``; ``tokens``: int64 [n], the
    token after each position, which is what the draft reads there; ``slots``: int64 [n], where its
    KV goes; ``positions``: int64 [n].
    """

    hidden: torch.Tensor
    tokens: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor


class PendingLog:
    """A preallocated log over the whole batch, and the newest entry of each request.

    Every plain step takes in all running requests but those that are about to end, so an entry is
    a row of a step and need not move when batches merge or shrink; memory is bounded by tokens, not
    by requests times a window. All bookkeeping is on the host and depends on the batches alone.

    A request may end, and its KV slots may be another's, before its entries are written: an entry
    counts only until a newer one names its slot.
    """

    def __init__(
        self,
        capacity: int,
        max_requests: int,
        max_slots: int,
        width: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        """``capacity``: entries; ``width``: of a hidden state, in elements of ``dtype``.

        ``max_slots``: KV slots of the draft's pool; slot 0 is nobody's.
        """
        self.capacity = capacity
        # Zeros: rows of requests without an entry are gathered too, and must be finite.
        self._hidden = torch.zeros((capacity, width), dtype=dtype, device=device)
        self._fields = torch.zeros((3, capacity), dtype=torch.int64, device=device)
        self._order = torch.arange(capacity, device=device)
        self._last_writer = torch.full((max_slots,), NONE, dtype=torch.int64, device=device)
        self._newest = torch.full((max_requests,), NONE, dtype=torch.int64)
        # Rows of the last step and the entry of the first, until they are in the table.
        self._step_rows: torch.Tensor | None = None
        self._step_first = 0
        self._used = 0
        self._synced = 0

    @property
    def nbytes(self) -> int:
        parts = (self._hidden, self._fields, self._order, self._last_writer)
        return int(sum(part.nbytes for part in parts))

    @property
    def pending(self) -> int:
        """Entries whose draft KV is not written."""
        return self._used - self._synced

    @property
    def is_empty(self) -> bool:
        return self._used == 0

    def has_room(self, count: int) -> bool:
        return self._used + count <= self.capacity

    def append_step(self, rows: torch.Tensor, entries: Entries) -> None:
        """A plain step of the whole running batch; it supersedes every newest entry.

        ``rows``: int64 [n] on the host, request-pool indices. Nothing may be pending when there is
        no room.
        """
        if self.pending == 0:
            self._used = self._synced = 0
        # The table would be rewritten in every step, and is read after a switch or a prefill.
        self._step_rows, self._step_first = rows, self._used
        self._append(entries)

    def append(self, rows: torch.Tensor, entries: Entries, last: torch.Tensor) -> None:
        """A prefill. ``last``: int64 [n] on the host, index of each row's last entry."""
        self._settle()
        self._append(entries)
        self._newest[rows] = self._used - len(entries.tokens) + last

    def append_synced(self, rows: torch.Tensor, entries: Entries) -> None:
        """The last positions of a prefill whose draft KV is written already; none is pending."""
        assert self.pending == 0
        self.append(rows, entries, torch.arange(len(rows)))
        self._synced = self._used

    def take_pending(self) -> Entries:
        """The pending entries, as views but the slots. They count as synced from now on.

        An entry whose slot has a newer one goes to slot 0.
        """
        part = slice(self._synced, self._used)
        self._synced = self._used
        tokens, slots, positions = self._fields[:, part]
        order = self._order[part]
        self._last_writer.scatter_reduce_(0, slots, order, "amax")
        is_last = self._last_writer[slots] == order
        # Not by assignment: the scalar would be copied to the device, and the host wait for it.
        self._last_writer.index_fill_(0, slots, NONE)
        return Entries(self._hidden[part], tokens, slots * is_last, positions)

    def newest(self, rows: torch.Tensor) -> torch.Tensor:
        """Index of each request's newest entry, or NONE; int64 [n] on the host, like ``rows``."""
        self._settle()
        return self._newest[rows]

    def gather(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [n, width] and tokens int64 [n] at ``index`` (int64 [n], device)."""
        return self._hidden[index], self._fields[0, index]

    def clear(self) -> None:
        self._step_rows = None
        self._newest.fill_(NONE)
        self._used = self._synced = 0

    def forget(self, rows: torch.Tensor) -> None:
        """The requests have a draft state of their own again."""
        if self.is_empty:
            return
        self._settle()
        self._newest[rows] = NONE
        if self.pending == 0 and bool((self._newest == NONE).all()):
            self._used = self._synced = 0

    def check(self, rows: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor) -> None:
        """Raise AssertionError unless the newest entries describe the last committed tokens.

        ``lengths``: int64 [n], committed lengths; ``table``: ``req_to_token``. Waits for the
        device.
        """
        index = self.newest(rows)
        known = index != NONE
        _, slots, positions = self._fields[:, index[known].to(self._fields.device)]
        device = lengths.device
        rows, lengths = rows.to(device)[known.to(device)], lengths[known.to(device)]
        assert torch.equal(positions, lengths - 1), (positions, lengths)
        assert torch.equal(slots, table[rows, positions].long()), (slots, rows, positions)

    def _settle(self) -> None:
        """Bring the table of newest entries up to the last step, which superseded them all."""
        if self._step_rows is None:
            return
        self._newest.fill_(NONE)
        first = self._step_first
        self._newest[self._step_rows] = torch.arange(first, first + len(self._step_rows))
        self._step_rows = None

    def _append(self, entries: Entries) -> None:
        count = len(entries.tokens)
        assert self.has_room(count), (self._used, count, self.capacity)
        part = slice(self._used, self._used + count)
        self._hidden[part] = entries.hidden
        torch.stack(entries[1:], out=self._fields[:, part])
        self._used += count
