"""Draft-tree construction and greedy verification in plain Python.

A tree has at most a few dozen nodes per request, so lists are faster here than tensor operations.
The semantics are those of the Triton kernels in SGLang 0.5.23,
``kernels/ops/speculative/spec_tree``.
"""

import torch
from torch import Tensor

_QLEN_ONLY = 1  # TreeMaskMode.QLEN_ONLY, the one mode the CPU engine uses


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill the verify inputs of every request's draft tree, node 0 being the bonus token.

    ``selected_index`` ``[bs, n - 1]`` holds each drafted node's flat index among all candidates,
    ascending; ``parent_list`` ``[bs, p]`` maps ``index // topk`` to the parent's flat index (0 is
    the root). Written: ``tree_mask`` (bool, flat, ``bs * n * n``: row sees column), ``positions``
    (flat, ``bs * n``: length + depth), ``retrieve_*`` ``[bs, n]`` int64: global node index, first
    child and next sibling as local indices, -1 for none.
    """
    if int(tree_mask_mode) != _QLEN_ONLY:
        raise NotImplementedError(f"tree_mask_mode {int(tree_mask_mode)}: only QLEN_ONLY (1)")
    bs, n = verified_seq_len.numel(), draft_token_num
    child = [[-1] * n for _ in range(bs)]
    sibling = [[-1] * n for _ in range(bs)]
    mask: list[list[bool]] = []
    depths: list[list[int]] = []
    trees = zip(parent_list.tolist(), selected_index.tolist(), strict=True)
    for b, (parents_of, selected) in enumerate(trees):
        parents = _parents(parents_of, selected[: n - 1], topk)
        # In descending order, so that a node's first child is its smallest index.
        for node in range(n - 1, 0, -1):
            parent = parents[node]
            if parent is not None:
                sibling[b][node], child[b][parent] = child[b][parent], node
        paths = [_path(parents, node, depth) for node in range(n)]
        mask.extend([j == 0 or j in path for j in range(n)] for path in paths)
        depths.append([len(path) for path in paths])

    tree_mask[: bs * n * n] = torch.tensor(mask, dtype=tree_mask.dtype).flatten()
    lengths = verified_seq_len.long()[:, None]
    positions[: bs * n] = (lengths + torch.tensor(depths).view(bs, n)).flatten()
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    retrieve_next_token.copy_(torch.tensor(child).view(bs, n))
    retrieve_next_sibling.copy_(torch.tensor(sibling).view(bs, n))


def _parents(parents_of: list[int], selected: list[int], topk: int) -> list[int | None]:
    """Local parent of each node; None where the parent itself was not selected (and for node 0)."""
    node_of = {flat: i + 1 for i, flat in reversed(list(enumerate(selected)))}
    parents: list[int | None] = [None]
    for flat in selected:
        group = flat // topk
        parents.append(0 if group == 0 else node_of.get(parents_of[group]))
    return parents


def _path(parents: list[int | None], node: int, depth: int) -> list[int]:
    """The node and its ancestors without the root, at most ``depth`` of them."""
    path: list[int] = []
    current: int | None = node
    while current and len(path) < depth:
        path.append(current)
        current = parents[current]
    return path


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root, accepting the child that equals the target's prediction.

    ``candidates``, ``retrive_*`` and ``target_predict`` are ``[bs, n]``. Written: ``predicts``
    (flat, ``bs * n``) the target's token at each accepted node, ``accept_index`` ``[bs, s]`` the
    global indices of the accepted nodes (root first; the rest is left as it was),
    ``accept_token_num`` ``[bs]`` how many drafts were accepted, the bonus token not counted.

    The keyword names are misspelt as in the op's schema: SGLang passes them by keyword.
    """
    flat_target = target_predict.flatten().tolist()
    token_rows, index_rows = candidates.tolist(), retrive_index.tolist()
    child_rows, sibling_rows = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    max_accepted = accept_index.shape[1] - 1
    for b, tokens in enumerate(token_rows):
        path = [0]
        while len(path) <= max_accepted:
            wanted = flat_target[index_rows[b][path[-1]]]
            node = child_rows[b][path[-1]]
            while node != -1 and tokens[node] != wanted:
                node = sibling_rows[b][node]
            if node == -1:
                break
            path.append(node)
        accepted = [index_rows[b][node] for node in path]
        accept_index[b, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        predicts[accepted] = torch.tensor([flat_target[i] for i in accepted], dtype=predicts.dtype)
        accept_token_num[b] = len(accepted) - 1
