"""The host's runner of CUDA graphs for decode batches."""

from __future__ import annotations

try:
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner as GraphRunner

    # Of a model runner: where its graphs are held.
    HOLDER = "decode_cuda_graph_runner"
    # Of a graph runner: how much of the hidden states its graphs put out.
    OUTPUT_MODE = "return_hidden_states_mode"
    # The largest batch that graphs are captured for.
    LIMIT_FLAG = "--cuda-graph-max-bs-decode"
except ImportError:
    from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner as GraphRunner

    HOLDER = "graph_runner"
    OUTPUT_MODE = "capture_hidden_mode"
    LIMIT_FLAG = "--cuda-graph-max-bs"

__all__ = ["HOLDER", "LIMIT_FLAG", "OUTPUT_MODE", "GraphRunner"]
