"""Decode and extend attention against a softmax written out per head and query."""

import math

import pytest

torch = pytest.importorskip("torch")

from spec_toggle.reference import attention_ops  # noqa: E402

HEADS, KV_HEADS, DIM, V_DIM, SLOTS, WIDTH = 6, 2, 8, 4, 64, 30
SCALE = 0.3
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def naive(query, keys, values, visible, cap=0.0):
    """``query`` [n, heads, dim]; ``visible[i]`` lists the keys that query ``i`` sees."""
    out = torch.zeros(query.shape[0], HEADS, values.shape[-1])
    for i, seen in enumerate(visible):
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            scores = [float(query[i, head].float() @ keys[j, kv].float()) * SCALE for j in seen]
            if cap:
                scores = [cap * math.tanh(s / cap) for s in scores]
            weights = [math.exp(s) for s in scores]
            for weight, j in zip(weights, seen, strict=True):
                out[i, head] += weight / sum(weights) * values[j, kv].float()
    return out


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def cache(request):
    g = torch.Generator().manual_seed(1)
    k = torch.randn(SLOTS, KV_HEADS, DIM, generator=g).to(request.param)
    v = torch.randn(SLOTS, KV_HEADS, V_DIM, generator=g).to(request.param)
    table = torch.stack([torch.randperm(SLOTS, generator=g)[:WIDTH] for _ in range(4)]).int()
    return k, v, table, g


def rand(g, dtype, *shape):
    return torch.randn(*shape, generator=g).to(dtype)


def decode(query, k, v, key, value, loc, table, rows, lens, cap=0.0, **changes):
    out = torch.zeros(query.shape[0], HEADS, V_DIM, dtype=query.dtype)
    arguments = dict(
        query=query, k_buffer=k, v_buffer=v, k_scale=1.0, v_scale=1.0, output=out, key=key,
        value=value, loc=loc, attn_logits=torch.empty(0), req_to_token=table,
        req_pool_indices=torch.tensor(rows), seq_lens=torch.tensor(lens), sm_scale=SCALE,
        logit_cap=cap, is_cross_attn=False, sliding_window_size=0, encoder_lens=None, sinks=None,
    )  # fmt: skip
    attention_ops.decode_attention_cpu(**{**arguments, **changes})
    return out


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_decode_writes_the_new_token_and_attends_to_it(cache, cap):
    k, v, table, g = cache
    rows, lens = [3, 0], [11, 5]
    query = rand(g, k.dtype, 2, HEADS, DIM)
    key, value = rand(g, k.dtype, 2, KV_HEADS, DIM), rand(g, k.dtype, 2, KV_HEADS, V_DIM)
    # The two requests own different slots, as in a server.
    table[3], table[0] = torch.arange(WIDTH), torch.arange(WIDTH, 2 * WIDTH)
    loc = torch.stack([table[r, n - 1] for r, n in zip(rows, lens, strict=True)]).long()
    before = k.clone()
    out = decode(query, k, v, key, value, loc, table, rows, lens, cap)
    assert torch.equal(k[loc], key) and torch.equal(v[loc], value)
    untouched = [s for s in range(SLOTS) if s not in loc.tolist()]
    assert torch.equal(k[untouched], before[untouched])
    for i, (row, n) in enumerate(zip(rows, lens, strict=True)):
        slots = table[row, :n].long()
        expected = naive(query[i : i + 1], k[slots], v[slots], [range(n)], cap)
        torch.testing.assert_close(
            out[i : i + 1].float(), expected, atol=TOLERANCE[k.dtype], rtol=TOLERANCE[k.dtype]
        )


def test_decode_without_new_keys_only_reads(cache):
    k, v, table, g = cache
    before = k.clone()
    query = rand(g, k.dtype, 1, HEADS, DIM)
    out = decode(query, k, v, None, None, torch.tensor([0]), table, [1], [9])
    slots = table[1, :9].long()
    assert torch.equal(k, before)
    expected = naive(query, k[slots], v[slots], [range(9)])
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


def test_decode_does_not_depend_on_the_batch(cache):
    k, v, table, g = cache
    query = rand(g, k.dtype, 3, HEADS, DIM)
    together = decode(query, k, v, None, None, None, table, [0, 1, 2], [3, 29, 12])
    for i, n in enumerate([3, 29, 12]):
        alone = decode(query[i : i + 1], k, v, None, None, None, table, [i], [n])
        assert torch.equal(together[i : i + 1], alone)


def extend(cache, prefixes, counts, tree_mask=None, is_causal=True, with_new=True, **changes):
    """Returns the output and, per request, its keys, values and queries."""
    k, v, table, g = cache
    total, rows = sum(counts), [2, 0, 1][: len(counts)]
    query = rand(g, k.dtype, total, HEADS, DIM)
    new_k, new_v = rand(g, k.dtype, total, KV_HEADS, DIM), rand(g, k.dtype, total, KV_HEADS, V_DIM)
    starts = [sum(counts[:i]) for i in range(len(counts))]
    requests = []
    for row, prefix, start, n in zip(rows, prefixes, starts, counts, strict=True):
        slots = table[row, : prefix + n].long()
        keys, values = k[slots].clone(), v[slots].clone()
        if with_new:
            keys[prefix:], values[prefix:] = new_k[start : start + n], new_v[start : start + n]
        requests.append((query[start : start + n], keys, values))
    out = torch.zeros(total, HEADS, V_DIM, dtype=k.dtype)
    lengths = [p + n for p, n in zip(prefixes, counts, strict=True)]
    arguments = dict(
        q_extend=query, k_extend=new_k if with_new else None, v_extend=new_v if with_new else None,
        o_extend=out, k_buffer=k, v_buffer=v, k_scale=1.0, v_scale=1.0, req_to_token=table,
        req_pool_indices=torch.tensor(rows), seq_lens=torch.tensor(lengths),
        extend_seq_lens=torch.tensor(counts, dtype=torch.int32),
        extend_start_loc=torch.tensor(starts, dtype=torch.int32), max_len_extend=max(counts),
        sm_scale=SCALE, logit_cap=0.0, is_cross_attn=False, sliding_window_size=0,
        encoder_lens=None, sinks=None, tree_mask=tree_mask, is_causal=is_causal,
    )  # fmt: skip
    attention_ops.extend_attention_cpu(**{**arguments, **changes})
    return out, starts, requests


def check(cache, result, visible_of):
    out, starts, requests = result
    tolerance = TOLERANCE[cache[0].dtype]
    for i, (start, (query, keys, values)) in enumerate(zip(starts, requests, strict=True)):
        n, prefix = query.shape[0], keys.shape[0] - query.shape[0]
        visible = [[*range(prefix), *(prefix + c for c in visible_of(i, r, n))] for r in range(n)]
        expected = naive(query, keys, values, visible)
        torch.testing.assert_close(
            out[start : start + n].float(), expected, atol=tolerance, rtol=tolerance
        )


@pytest.mark.parametrize("with_new", [True, False])
def test_extend_is_causal(cache, with_new):
    result = extend(cache, [5, 0, 9], [4, 6, 1], with_new=with_new)
    check(cache, result, lambda i, r, n: range(r + 1))


def test_extend_without_causality(cache):
    result = extend(cache, [2, 7], [3, 2], is_causal=False)
    check(cache, result, lambda i, r, n: range(n))


def test_extend_with_a_tree_mask_per_request(cache):
    trees = torch.tensor([
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]],
    ]).bool()  # fmt: skip
    # A preallocated mask may be longer than this batch needs.
    mask = torch.cat((trees.flatten(), torch.ones(16, dtype=torch.bool)))
    result = extend(cache, [5, 12], [4, 4], tree_mask=mask)
    check(cache, result, lambda i, r, n: [c for c in range(n) if trees[i, r, c]])


UNSUPPORTED = {
    "k_scale": 2.0,
    "v_scale": 2.0,
    "is_cross_attn": True,
    "sliding_window_size": 5,
    "encoder_lens": torch.ones(1),
    "sinks": torch.ones(HEADS),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_arguments_are_named(cache, name):
    k, v, table, g = cache
    change = {name: UNSUPPORTED[name]}
    with pytest.raises(NotImplementedError, match=name):
        extend(cache, [1], [1], **change)
    with pytest.raises(NotImplementedError, match=name):
        decode(rand(g, k.dtype, 1, HEADS, DIM), k, v, None, None, None, table, [0], [3], **change)
