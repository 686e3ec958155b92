"""Model folders that hold a config.json only: shapes to serve with ``--load-format dummy``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class ModelPair(NamedTuple):
    """A target and its EAGLE-3 draft. ``label`` names the pair in result files; ``prompts`` are the
    token ids of real prompts, none for models that random ones will do for."""

    label: str
    target: Path
    draft: Path
    vocab_size: int
    prompts: tuple[tuple[int, ...], ...] = ()


_COMMON: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_SHAPES: dict[str, dict[str, Any]] = {
    "dummy-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 16384,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "torch_dtype": "bfloat16",
    },
    "dummy-tiny": {
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        # With fewer, two of the three layers that EAGLE-3 reads would be the same one.
        "num_hidden_layers": 8,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "vocab_size": 384,
        "draft_vocab_size": 96,
        "torch_dtype": "float32",
    },
}

DUMMY_NAMES = tuple(_SHAPES)
PAIRS = ("reference",)


def resolve_models(name: str, draft: str | None, folder: Path) -> ModelPair:
    """The pair that ``--model`` names: a dummy shape, written below ``folder``, or real folders.

    Raises:
        ValueError: a real model without a draft, or a folder without a config.json.
    """
    if name in _SHAPES:
        return _write_dummy(name, folder)
    if draft is None:
        raise ValueError(f"--model {name} needs --draft FOLDER (only dummy shapes bring their own)")
    config = Path(name) / "config.json"
    if not config.is_file():
        raise ValueError(f"--model {name}: no config.json there; dummy shapes: {DUMMY_NAMES}")
    vocab_size = int(json.loads(config.read_text())["vocab_size"])
    return ModelPair(Path(name).name.lower(), Path(name), Path(draft), vocab_size)


def resolve_pair(name: str, head: Path | None = None) -> ModelPair:
    """The pair that ``--pair`` names, with its held-out prompts as chats; ``head``: another draft
    than its own.

    Raises:
        ValueError: there is no such pair, or it cannot be had.
    """
    # Imported here: servers of dummy shapes are started without torch.
    from benchmarks.reference_pair.fetch import FetchError
    from benchmarks.reference_pair.pair import HEAD, encode_chats, reference_pair
    from benchmarks.reference_pair.prompts import held_out_prompts

    if name not in PAIRS:
        raise ValueError(f"--pair {name}: known pairs are {', '.join(PAIRS)}")
    try:
        pair = reference_pair(head or HEAD)
    except FetchError as error:
        raise ValueError(f"--pair {name}: {error}") from None
    prompts = tuple(map(tuple, encode_chats(pair.target, held_out_prompts())))
    vocab_size = int(json.loads((pair.target / "config.json").read_text())["vocab_size"])
    return ModelPair("smollm2-135m", pair.target, pair.head, vocab_size, prompts)


def _write_dummy(name: str, folder: Path) -> ModelPair:
    shape = {**_COMMON, **_SHAPES[name]}
    draft_vocab = shape.pop("draft_vocab_size")
    target = {**shape, "architectures": ["LlamaForCausalLM"]}
    draft = {
        **shape,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab,
    }
    pair = ModelPair(name, folder / name / "target", folder / name / "draft", shape["vocab_size"])
    for path, config in ((pair.target, target), (pair.draft, draft)):
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config, indent=2))
    return pair
