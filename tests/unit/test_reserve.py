"""How many KV slots a plain step has reserved."""

from __future__ import annotations

from types import SimpleNamespace as Record

import pytest

from spec_toggle.reserve import AHEAD, SPARE, slots_to_reserve

NEEDED = 8


def batch(
    *lengths: tuple[int, int],
    free: int = 1000,
    cached: int = 0,
    stuck: int = 0,
    width: int = 500,
    page_size: int = 1,
) -> Record:
    """``lengths``: committed and allocated, of each request.

    ``free``, ``cached``: slots of the pool, and of the prefix cache; ``stuck``: of those, what the
    cache says it can give back and cannot.
    """
    return Record(
        reqs=[Record(kv=Record(kv_committed_len=c, kv_allocated_len=a)) for c, a in lengths],
        spec_algorithm="EAGLE3",
        tree_cache=Record(evictable_size=lambda: cached),
        token_to_kv_pool_allocator=Record(
            page_size=page_size,
            available_size=lambda: free,
            check_decode_capacity=lambda num_tokens, **_: num_tokens <= free + cached - stuck,
        ),
        req_to_token_pool=Record(req_to_token=Record(shape=(4, width))),
    )


def test_as_long_as_a_round_fits_nothing_more_is_taken() -> None:
    assert slots_to_reserve(batch((100, 108), (50, 70)), NEEDED) == NEEDED


def test_one_request_that_is_short_has_all_topped_up() -> None:
    assert slots_to_reserve(batch((100, 107), (50, 70)), NEEDED) == NEEDED + AHEAD


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_pool_that_gets_short_gives_what_the_host_has_checked(page_size: int) -> None:
    need = SPARE * 2 * (NEEDED + AHEAD + page_size)
    short = ((100, 107), (50, 57))
    enough = batch(*short, free=need, page_size=page_size)
    assert slots_to_reserve(enough, NEEDED) == NEEDED + AHEAD
    tight = batch(*short, free=need - 1, page_size=page_size)
    assert slots_to_reserve(tight, NEEDED) == NEEDED


def test_slots_of_the_prefix_cache_count_if_it_gives_them_back() -> None:
    short, need = ((100, 107),), SPARE * (NEEDED + AHEAD + 1)
    assert slots_to_reserve(batch(*short, free=0, cached=need), NEEDED) == NEEDED + AHEAD
    stuck = batch(*short, free=0, cached=need, stuck=need)
    assert slots_to_reserve(stuck, NEEDED) == NEEDED


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_slot_table_is_never_written_past_its_end(page_size: int) -> None:
    width = 100 + NEEDED + AHEAD + page_size
    fits = batch((100, 107), width=width, page_size=page_size)
    assert slots_to_reserve(fits, NEEDED) == NEEDED + AHEAD
    too_long = batch((100, 107), width=width - 1, page_size=page_size)
    assert slots_to_reserve(too_long, NEEDED) == NEEDED
