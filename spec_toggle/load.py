"""What a policy may see of the server's load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadSample:
    """The load of one decode iteration, a function of state that every rank replicates.

    ``batch_size``: requests in the decode batch (0: the server is idle).
    ``queue_length``: requests that wait for a prefill.
    """

    batch_size: int
    queue_length: int = 0
