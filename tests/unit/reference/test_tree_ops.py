"""Draft trees and greedy verification against hand-made trees and a search over paths."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

from spec_toggle.reference import tree_ops  # noqa: E402

QLEN_ONLY = 1


def build(parent_list, selected, seq_lens, topk, depth, n, mode=QLEN_ONLY):
    bs = len(seq_lens)
    mask = torch.ones(bs * n * n, dtype=torch.bool)
    positions = torch.empty(bs * n, dtype=torch.int64)
    retrieve = torch.full((3, bs, n), -1)
    tree_ops.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_list).view(bs, -1),
        torch.tensor(selected),
        torch.tensor(seq_lens),
        mask,
        positions,
        *retrieve,
        topk,
        depth,
        n,
        mode,
    )
    return mask.view(bs, n, n).int().tolist(), positions.view(bs, n).tolist(), retrieve.tolist()


# topk 2, three levels: candidates 0-1 are the root's, 2-3 are 0's and 4-5 are 1's children; the
# third level continues candidates 3 and 4 with 6-7 and 8-9. Entry 0 of parent_list is the root's.
PARENT_LIST = [-1, 0, 1, 3, 4]


def test_tree_of_three_levels():
    # Nodes: 1 = 0, 2 = 1, 3 = 3 (of node 1), 4 = 4 (of node 2), 5 = 6 (of 3), 6 = 7 (of 3).
    mask, positions, (index, child, sibling) = build(
        [PARENT_LIST, PARENT_LIST], [[0, 1, 3, 4, 6, 7]] * 2, [7, 30], 2, 3, 7
    )
    assert index == [list(range(7)), list(range(7, 14))]
    assert child == [[1, 3, 4, 5, -1, -1, -1]] * 2
    assert sibling == [[-1, 2, -1, -1, -1, 6, -1]] * 2
    assert positions == [[7, 8, 8, 9, 9, 10, 10], [30, 31, 31, 32, 32, 33, 33]]
    assert mask[0] == mask[1]
    assert mask[0] == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0, 1, 0],
        [1, 1, 0, 1, 0, 0, 1],
    ]


def test_requests_have_trees_of_their_own():
    _, positions, (_, child, sibling) = build(
        [PARENT_LIST, PARENT_LIST], [[0, 1, 4], [0, 3, 6]], [5, 9], 2, 3, 4
    )
    assert child == [[1, -1, 3, -1], [1, 2, 3, -1]]
    assert sibling == [[-1, 2, -1, -1], [-1, -1, -1, -1]]
    assert positions == [[5, 6, 6, 7], [9, 10, 11, 12]]


def test_chain_is_causal():
    mask, positions, (_, child, sibling) = build([[-1, 0, 1]], [[0, 1, 2]], [4], 1, 3, 4)
    assert mask[0] == torch.ones(4, 4).tril().int().tolist()
    assert positions == [[4, 5, 6, 7]]
    assert child == [[1, 2, 3, -1]] and sibling == [[-1, -1, -1, -1]]


def test_one_step_has_no_parent_list():
    mask, positions, (_, child, sibling) = build([[]], [[0, 1, 2]], [4], 3, 1, 4)
    assert child == [[1, -1, -1, -1]] and sibling == [[-1, 2, 3, -1]]
    assert positions == [[4, 5, 5, 5]]
    assert mask[0][3] == [1, 0, 0, 1]


def test_full_mask_is_refused():
    with pytest.raises(NotImplementedError, match="tree_mask_mode"):
        build([[-1, 0, 1]], [[0, 1, 2]], [4], 1, 3, 4, mode=0)


def verify(tokens, child, sibling, target, spec_steps):
    bs, n = len(tokens), len(tokens[0])
    predicts = torch.zeros(bs * n, dtype=torch.int32)
    accept_index = torch.full((bs, spec_steps + 1), -1, dtype=torch.int32)
    accepted = torch.empty(bs, dtype=torch.int32)
    tree_ops.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=torch.tensor(tokens),
        retrive_index=torch.arange(bs * n).view(bs, n),
        retrive_next_token=torch.tensor(child),
        retrive_next_sibling=torch.tensor(sibling),
        target_predict=torch.tensor(target),
    )
    return predicts.tolist(), accept_index.tolist(), accepted.tolist()


CHILD = [1, 3, 4, 5, -1, -1, -1]
SIBLING = [-1, 2, -1, -1, -1, 6, -1]


def test_verification_takes_the_second_sibling():
    # Request 0 goes root -> 2 -> 4 and ends there; request 1 rejects both of the root's children.
    predicts, index, accepted = verify(
        [[90, 11, 12, 13, 14, 15, 16]] * 2,
        [CHILD] * 2,
        [SIBLING] * 2,
        [[12, 0, 14, 0, 77, 0, 0], [55, 1, 2, 3, 4, 5, 6]],
        spec_steps=3,
    )
    assert index == [[0, 2, 4, -1], [7, -1, -1, -1]]
    assert accepted == [2, 0]
    assert predicts == [12, 0, 14, 0, 77, 0, 0, 55, 0, 0, 0, 0, 0, 0]


def test_verification_stops_at_the_accept_width():
    _, index, accepted = verify([[9, 1, 1, 1]], [[1, 2, 3, -1]], [[-1] * 4], [[1, 1, 1, 1]], 2)
    assert index == [[0, 1, 2]] and accepted == [2]


def test_verification_of_random_trees():
    rng = random.Random(0)
    for _ in range(200):
        n, steps = 8, 3
        parents = [-1] + [rng.randrange(node) for node in range(1, n)]
        children = [[c for c in range(n) if parents[c] == node] for node in range(n)]
        child, sibling = [kids[0] if kids else -1 for kids in children], [-1] * n
        tokens = [rng.randrange(6) for _ in range(n)]
        for kids in children:
            for left, right in itertools.pairwise(kids):
                sibling[left] = right
        target = [rng.randrange(6) for _ in range(n)]
        path = [0]
        while len(path) <= steps:
            match = [c for c in children[path[-1]] if tokens[c] == target[path[-1]]]
            if not match:
                break
            path.append(match[0])
        predicts, index, accepted = verify([tokens], [child], [sibling], [target], steps)
        assert index == [path + [-1] * (steps + 1 - len(path))]
        assert accepted == [len(path) - 1]
        assert [predicts[node] for node in path] == [target[node] for node in path]
