"""KV-cache bookkeeping against plain loops."""

import pytest

torch = pytest.importorskip("torch")

from spec_toggle.reference import cache_ops  # noqa: E402

ROWS, WIDTH = 6, 40


@pytest.fixture
def table():
    """A ``req_to_token`` table whose every entry is unique."""
    return (
        torch.randperm(ROWS * WIDTH, generator=torch.Generator().manual_seed(0))
        .view(ROWS, WIDTH)
        .int()
    )


def test_copy_moves_rows_by_byte_stride_in_every_buffer():
    k = torch.arange(10 * 2 * 3, dtype=torch.float32).view(10, 2, 3)
    v = torch.arange(10 * 5, dtype=torch.bfloat16).view(10, 5)
    expected_k, expected_v = k.clone(), v.clone()
    for target, source in ((1, 4), (2, 9), (3, 3)):
        expected_k[target], expected_v[target] = k[source], v[source]
    pointers = torch.tensor([k.data_ptr(), v.data_ptr()], dtype=torch.uint64)
    strides = torch.tensor([2 * 3 * 4, 5 * 2])
    cache_ops.copy_all_layer_kv_cache_cpu(
        pointers, strides, torch.tensor([1, 2, 3]), torch.tensor([4, 9, 3])
    )
    assert torch.equal(k, expected_k) and torch.equal(v, expected_v)


def test_copy_reads_all_rows_before_it_writes_one():
    k = torch.arange(4, dtype=torch.float32).view(4, 1)
    cache_ops.copy_all_layer_kv_cache_cpu(
        torch.tensor([k.data_ptr()], dtype=torch.uint64),
        torch.tensor([4]),
        torch.tensor([0, 1, 2]),
        torch.tensor([1, 2, 0]),
    )
    assert k.flatten().tolist() == [1, 2, 0, 3]


def test_bonus_token_is_the_last_accepted_one():
    tokens = torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]], dtype=torch.int32)
    bonus = torch.empty(3, dtype=torch.int32)
    lens = torch.tensor([1, 4, 2], dtype=torch.int32)
    cache_ops.fill_bonus_tokens_cpu(tokens.flatten(), lens, bonus, 4)
    assert bonus.tolist() == [10, 23, 31]


def test_accepted_slots_are_packed_at_the_front():
    accept_index = torch.tensor([[0, 2, -1], [4, -1, -1], [8, 9, 11]], dtype=torch.int32)
    slots = torch.arange(100, 112)
    out = torch.zeros(9, dtype=torch.int64)
    cache_ops.fill_accept_out_cache_loc_cpu(accept_index, slots, out)
    assert out.tolist() == [100, 102, 104, 108, 109, 111, 0, 0, 0]


@pytest.mark.parametrize("topk", [1, 3])
def test_draft_slots_follow_the_sequence(table, topk):
    rows, lens, steps = [4, 1], [7, 20], 3
    out = torch.empty(2 * topk * steps, dtype=torch.int64)
    cache_ops.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor(rows), table, torch.tensor(lens), out, WIDTH, topk, steps
    )
    expected = [
        table[r, n + j].item() for r, n in zip(rows, lens, strict=True) for j in range(topk * steps)
    ]
    assert out.tolist() == expected


def test_extend_slots_are_gathered_request_after_request(table):
    rows, start, end = [5, 0, 2], [3, 10, 0], [7, 10, 2]
    out = torch.full((8,), -1)
    cache_ops.assign_extend_cache_locs_cpu(
        torch.tensor(rows), table, torch.tensor(start), torch.tensor(end), out, WIDTH
    )
    expected = [
        table[r, j].item() for r, s, e in zip(rows, start, end, strict=True) for j in range(s, e)
    ]
    assert out.tolist() == [*expected, -1, -1]


def test_new_slots_are_written_to_the_request_rows_only(table):
    rows, start, end = [5, 0, 2], [3, 10, 0], [7, 10, 2]
    slots = torch.arange(1000, 1006)
    expected = table.clone()
    values = iter(slots.tolist())
    for r, s, e in zip(rows, start, end, strict=True):
        for j in range(s, e):
            expected[r, j] = next(values)
    cache_ops.assign_req_to_token_pool_cpu(
        torch.tensor(rows), table, torch.tensor(start), torch.tensor(end), slots, WIDTH
    )
    assert torch.equal(table, expected)


@pytest.mark.parametrize("topk", [1, 4])
def test_each_draft_branch_sees_the_prefix_and_its_own_steps(table, topk):
    rows, lens, steps = [2, 3, 0], [5, 1, 11], 3
    got = cache_ops.build_draft_decode_metadata_cpu(
        table, torch.tensor(rows), torch.tensor(lens), topk, steps, WIDTH
    )
    assert got.shape[0] == len(rows) * topk and got.dtype == table.dtype
    for i, (row, length) in enumerate(zip(rows, lens, strict=True)):
        for branch in range(topk):
            own = [table[row, length + branch * steps + s].item() for s in range(steps)]
            visible = got[i * topk + branch, : length + steps].tolist()
            assert visible == [*table[row, :length].tolist(), *own]


def test_draft_metadata_at_the_end_of_a_row(table):
    lens, topk, steps = [WIDTH - 6, 2], 2, 3
    got = cache_ops.build_draft_decode_metadata_cpu(
        table, torch.tensor([1, 4]), torch.tensor(lens), topk, steps, WIDTH
    )
    assert got[1, : WIDTH - 3].tolist() == [
        *table[1, : WIDTH - 6].tolist(),
        *table[1, WIDTH - 3 :].tolist(),
    ]
