"""KV slots that the host reserves before a decode iteration: for many plain steps at a time.

The host tops every request up in every iteration, so that a round finds room for its drafts. A
plain step uses up one slot per request, so the batch would go through the allocator and the slot
table each time; reserving more at once leaves nothing to do in the iterations that follow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from spec_toggle.compat import replaced
from spec_toggle.policy import Mode
from spec_toggle.transfer import PinnedCopies

# KV slots per request beyond what a round needs: how many steps one reservation lasts for.
AHEAD = 16
# How many times the slots that are reserved must be there.
SPARE = 2


def prepare_for_decode(original: Callable[[Any], None], batch: Any) -> None:
    """``eagle_prepare_for_decode``: while PLAIN, reserve ``AHEAD`` slots more whenever it must."""
    toggle = getattr(batch.req_to_token_pool, "_dynamic_spec", None)
    if toggle is None:
        original(batch)
        return
    host = sys.modules[original.__module__]  # what ``original`` looks the number up in
    reserve = host.get_alloc_reserve_per_decode()
    if toggle.controller.mode is Mode.PLAIN:
        reserve = slots_to_reserve(batch, reserve)
    # The host copies lengths from pageable memory, for which the driver may hold it until it is
    # their turn in the scheduler's stream. That one waits for the forward that runs: for all of a
    # prefill, since no event tells when it has read its rows.
    with PinnedCopies(), replaced(host, get_alloc_reserve_per_decode=lambda: reserve):
        original(batch)


def slots_to_reserve(batch: Any, needed: int) -> int:
    """KV slots past each request's committed length; ``needed``: those that a round wants.

    No more than that as long as every request has them, and where the pool or the slot table would
    get short: the host has made sure of ``needed`` alone.
    """
    lengths = [(req.kv.kv_committed_len, req.kv.kv_allocated_len) for req in batch.reqs]
    if all(allocated - committed >= needed for committed, allocated in lengths):
        return needed
    width = needed + AHEAD + batch.token_to_kv_pool_allocator.page_size
    longest = max(committed for committed, _ in lengths)
    if longest + width > batch.req_to_token_pool.req_to_token.shape[1]:
        return needed
    return needed + AHEAD if _has_room(batch, len(lengths) * width) else needed


def _has_room(batch: Any, slots: int) -> bool:
    """Whether the pool can give ``slots`` and as many again, which are not to be missed by others.

    As the host does, count what the prefix cache can give back, and make it.
    """
    allocator, cache = batch.token_to_kv_pool_allocator, batch.tree_cache
    if allocator.available_size() + cache.evictable_size() < SPARE * slots:
        return False
    return bool(
        allocator.check_decode_capacity(
            num_tokens=slots,
            tree_cache=cache,
            requests=batch.reqs,
            spec_algorithm=batch.spec_algorithm,
        )
    )
