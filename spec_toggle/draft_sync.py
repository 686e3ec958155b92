"""Keeping the draft model's KV cache in step with tokens that plain steps produce."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from spec_toggle.config import ConfigError, DynamicSpecConfig
from spec_toggle.draft_extend import extend_one_token


class DraftSync:
    """What the worker tells a draft sync. The defaults are those of a draft that is always warm."""

    # Whether the draft runs after every plain step, and so is the last reader of shared buffers.
    runs_after_plain_step = False
    # Told how long the host took (s) for each write of pending draft KV.
    on_flush: Callable[[float], None] | None = None

    @property
    def pending(self) -> int:
        """Tokens whose draft KV is still to be written."""
        return 0

    def prefill(self, batch: Any, is_plain: bool) -> contextlib.AbstractContextManager[None]:
        """Around upstream's prefill of ``batch``, target and draft."""
        del batch, is_plain
        return contextlib.nullcontext()

    def after_plain_step(self, batch: Any, result: Any, slots: torch.Tensor) -> None:
        """``result`` is the plain step's; its next draft input may be completed here.

        slots: int64 [batch], where the target wrote the step's KV.
        """

    def before_round(self, batch: Any) -> None:
        """Make ``batch.spec_info`` a draft input that upstream's round can start from."""

    def idle(self) -> None: ...

    def fill(self, fills: bool) -> None:
        """Whether tokens of plain steps get their draft KV, from now on."""

    def finish(self) -> None:
        """Another sync takes over: leave nothing to be done."""


class EagerSync(DraftSync):
    """One draft-extend per plain step: always warm, a draft forward per token."""

    runs_after_plain_step = True

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def after_plain_step(self, batch: Any, result: Any, slots: torch.Tensor) -> None:
        extend_one_token(self._worker, batch, result)


def make_draft_sync(config: DynamicSpecConfig, worker: Any) -> DraftSync:
    """Raises ConfigError where the draft's KV cannot be written apart from its forward."""
    if config.draft_sync == "eager":
        return EagerSync(worker)
    from spec_toggle.deferred_sync import DeferredSync
    from spec_toggle.draft_kv import DraftKvWriter

    reason = DraftKvWriter.reason_against(worker)
    if reason is not None:
        raise ConfigError(
            f"dynamic-spec draft sync {config.draft_sync!r} does not work here: {reason}. "
            "Use --dynamic-spec-draft-sync eager."
        )
    return DeferredSync(worker, config.sync_tokens, fills=config.draft_sync == "deferred")
