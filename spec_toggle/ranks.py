"""What tensor-parallel ranks hold in common: each runs its own scheduler on the same requests.

A round and a plain step communicate differently, so ranks that disagree on a mode wait for each
other for ever. Every decision therefore rests on what all ranks see alike, or on what the first one
has sent.
"""

from __future__ import annotations

from typing import Any


def share(scheduler: Any, values: list[Any]) -> list[Any]:
    """What the first rank of the tensor-parallel group passed in; called by all of its ranks."""
    group = scheduler.tp_group
    if group.world_size == 1:
        return values
    from sglang.srt.utils import broadcast_pyobj

    shared: list[Any] = broadcast_pyobj(values, group.rank, group.cpu_group, src=group.ranks[0])
    return shared


def agree(scheduler: Any, what: str, value: Any) -> None:
    """Raise RuntimeError on every rank unless all passed in equal values; called by all of them."""
    group = scheduler.tp_group
    if group.world_size == 1:
        return
    import torch

    values: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(values, value, group=group.cpu_group)
    if any(other != values[0] for other in values):
        ranks = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(values))
        raise RuntimeError(f"tensor-parallel ranks differ in their {what}: {ranks}")


def agree_on_configuration(scheduler: Any, configuration: tuple[str, ...]) -> None:
    """Ranks on several nodes get their flags and files from one launch each: compare them."""
    try:
        agree(scheduler, "configuration of dynamic speculation", configuration)
    except RuntimeError as error:
        raise RuntimeError(
            f"{error}. Give every node the same flags, the same --dynamic-spec-config file and the "
            "same version of spec-toggle."
        ) from None


def keep_sampled_tokens(group: Any, tokens: Any, is_greedy: bool) -> None:
    """Make ``tokens`` int64 [batch], sampled by each rank of ``group``, those of its first one.

    Upstream does this for the sampled tokens of every round, because probabilities can differ
    between ranks in their last bits; plain steps are part of the same server.
    """
    if group.world_size > 1 and not is_greedy:
        group.broadcast(tokens, src=0)
