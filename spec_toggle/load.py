"""What a policy may see of the server's load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoadSample:
    """The load of one decode iteration, a function of state that every rank replicates.

    ``batch_size``: requests in the decode batch (0: the server is idle).
    ``queue_length``: requests that wait for a prefill.
    ``context_tokens``: committed tokens of all requests of the batch together.
    ``kv_usage``: share of the KV pool that running requests hold, 0 to 1.
    ``is_forced``: an operator decides the mode, whatever the policy says.
    """

    batch_size: int
    queue_length: int = 0
    context_tokens: int = 0
    kv_usage: float = 0.0
    is_forced: bool = False

    @property
    def context_per_request(self) -> float:
        return self.context_tokens / max(1, self.batch_size)
