"""Native DECODE graphs of the target, beside the TARGET_VERIFY graphs of a speculative server."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils import get_available_gpu_memory

from spec_toggle.compat import replaced
from spec_toggle.compat.graphs import HOLDER, LIMIT_FLAG, OUTPUT_MODE, GraphRunner

logger = logging.getLogger(__name__)


class NativeDecodeRunner(GraphRunner):
    """Upstream's decode runner, with the aux hidden states as a graph output.

    The base class assigns the mode the server was configured with, before it captures, and may
    assign that of a batch later; a plain step needs the hidden states for the draft whatever
    clients asked for.
    """


def _ignore(runner: NativeDecodeRunner, mode: Any) -> None:
    del runner, mode


setattr(NativeDecodeRunner, OUTPUT_MODE, property(lambda runner: CaptureHiddenMode.FULL, _ignore))


class DecodeGraphs:
    """Captured at start with the speculative identity hidden; swapped in for each plain step."""

    def __init__(self, worker: Any) -> None:
        self._runner = worker.target_worker.model_runner
        self.eager_steps = 0
        self.replays = 0
        before, start = self._free_gb(), time.perf_counter()
        self._attn_backend = self._build_attn_backend()
        with replaced(self._runner, spec_algorithm=SpeculativeAlgorithm.NONE):
            self._graphs = NativeDecodeRunner(self._runner, attn_backend=self._attn_backend)
        self.capture_s = time.perf_counter() - start
        self.memory_gb = before - self._free_gb()
        logger.info(
            "Dynamic speculation: captured native DECODE graphs for batch sizes %s in %.1f s, "
            "%.2f GB.",
            self._graphs.capture_bs,
            self.capture_s,
            self.memory_gb,
        )

    @property
    def batch_sizes(self) -> list[int]:
        return list(self._graphs.capture_bs)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """The target decodes on its native graphs and attention state inside the block."""
        with replaced(
            self._runner,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            attn_backend=self._attn_backend,
            **{HOLDER: self._graphs},
        ):
            yield

    def count(self, is_replayed: bool, batch_size: int) -> None:
        """Note whether a plain step replayed a graph; warn once when none is large enough."""
        if is_replayed:
            self.replays += 1
            return
        if self.eager_steps == 0:
            logger.warning(
                "Dynamic speculation: a plain step of batch size %d ran without a graph (largest "
                "captured: %d). Raise %s to cover it.",
                batch_size,
                self.batch_sizes[-1],
                LIMIT_FLAG,
            )
        self.eager_steps += 1

    def _build_attn_backend(self) -> Any:
        """A second attention backend: its graph buffers must not alias those of TARGET_VERIFY.

        The scratch memory of a kernel may: forwards follow each other on one stream.
        """
        return self._runner._get_attention_backend()

    def _free_gb(self) -> float:
        return float(get_available_gpu_memory(self._runner.device, self._runner.gpu_id))
