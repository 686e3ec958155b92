"""A tiny Llama target and an EAGLE-3 draft that was really trained on it, for tests and the demo.

Built from a seed on the CPU in about a minute, then kept on disk: `python -m
spec_toggle.reference.tiny_pair`.
"""

import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from . import tiny_models, tiny_text, tiny_training
from .tiny_models import Draft, Target, split_fused
from .tiny_text import document, held_out_prompts
from .tiny_training import Progress, TokenSource

__all__ = ["DRAFT_VOCAB_SIZE", "TinyPair", "build_tiny_pair", "held_out_prompts", "training_texts"]

# Smaller than the number of tokens in use, so that the draft cannot name every token.
DRAFT_VOCAB_SIZE = 96
_RECORD = "pair.json"
# Drafts meet the target's own greedy text, which takes no random turns.
_DRAFT_NOISE = 0.03
_EVALUATION_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class TinyPair:
    """Folders of the two models, and the mean tokens a round of three greedy draft steps."""

    target: Path
    draft: Path
    accept_len: float


def training_texts(seed: int = 0) -> list[str]:
    """The documents the target is trained on."""
    rng = random.Random(f"train-{seed}")
    return [document(rng, 2500) for _ in range(300)]


def build_tiny_pair(
    cache_dir: Path | None = None, seed: int = 0, progress: Progress | None = None
) -> TinyPair:
    """The pair of `seed`, from the cache or newly trained.

    The cache is `cache_dir`, else `$SPEC_TOGGLE_CACHE`, else `~/.cache/spec-toggle`. The folder's
    name depends on the source of the generator, so an old pair is never taken for a new one.
    """
    folder = _cache_root(cache_dir) / f"tiny-pair-{_source_key(seed)}"
    if not (folder / _RECORD).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            _build(scratch, seed, progress or (lambda stage, done, total: None))
            _publish(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    record = json.loads((folder / _RECORD).read_text())
    return TinyPair(folder / "target", folder / "draft", float(record["accept_len"]))


def _cache_root(cache_dir: Path | None) -> Path:
    if cache_dir is not None:
        return cache_dir.absolute()
    default = Path.home() / ".cache" / "spec-toggle"
    return Path(os.environ.get("SPEC_TOGGLE_CACHE") or default).absolute()


def _source_key(seed: int) -> str:
    digest = hashlib.sha256(str(seed).encode())
    for module in (__file__, tiny_text.__file__, tiny_models.__file__, tiny_training.__file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()[:16]


def _publish(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        # Another process was first; a full folder cannot be renamed over, and its pair is as good.
        if not (folder / _RECORD).is_file():
            raise


def _build(folder: Path, seed: int, progress: Progress) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        texts = training_texts(seed)
        tokenizer = tiny_text.train_tokenizer(texts)
        source = _encode(tokenizer, texts, seed)
        target = Target(tiny_text.VOCAB_SIZE)
        _initialise(target)
        tiny_training.train_target(target, source, progress)

        hot = source.most_frequent(DRAFT_VOCAB_SIZE, tiny_text.VOCAB_SIZE)
        rng = random.Random(f"draft-{seed}")
        calm = [document(rng, 1200, _DRAFT_NOISE) for _ in range(200)]
        draft = Draft(DRAFT_VOCAB_SIZE)
        _initialise(draft)
        tiny_training.train_draft(draft, target, hot, _encode(tokenizer, calm, seed), progress)

        prompts = [tokenizer.encode(text).ids for text in held_out_prompts(16, _EVALUATION_SEED)]
        accept_len = tiny_training.accept_length(target, draft, hot, prompts, 48)
    _write_target(folder / "target", target, tokenizer)
    _write_draft(folder / "draft", draft, hot)
    (folder / _RECORD).write_text(json.dumps({"accept_len": accept_len, "seed": seed}) + "\n")


def _encode(tokenizer: Tokenizer, texts: list[str], seed: int) -> TokenSource:
    encoded = [torch.tensor(entry.ids) for entry in tokenizer.encode_batch(texts)]
    return TokenSource(encoded, f"rows-{seed}")


def _initialise(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            # Large token tables: words are told apart from the first step, which halves training.
            is_table = "embed_tokens" in name or "lm_head" in name
            nn.init.normal_(parameter, std=0.5 if is_table else 0.5 * parameter.shape[1] ** -0.5)


def _config(**differences: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": tiny_models.HIDDEN,
        "intermediate_size": tiny_models.INTERMEDIATE,
        "num_attention_heads": tiny_models.HEADS,
        "num_key_value_heads": tiny_models.KV_HEADS,
        "head_dim": tiny_models.HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": tiny_models.MAX_POSITIONS,
        "rms_norm_eps": tiny_models.NORM_EPS,
        "rope_theta": tiny_models.ROPE_THETA,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": tiny_text.VOCAB_SIZE,
        "torch_dtype": "float32",
        **differences,
    }


def _write_target(folder: Path, target: Target, tokenizer: Tokenizer) -> None:
    folder.mkdir()
    tiny_text.save_tokenizer(tokenizer, folder, tiny_models.MAX_POSITIONS)
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": tensor
        for name, tensor in split_fused(target.state_dict()).items()
    }
    special = {
        f"{key}_token_id": tokenizer.token_to_id(token)
        for key, token in (("bos", tiny_text.BOS), ("eos", tiny_text.EOS), ("pad", tiny_text.PAD))
    }
    config = _config(
        architectures=["LlamaForCausalLM"], num_hidden_layers=tiny_models.LAYERS, **special
    )
    _write_model(folder, config, tensors)


def _write_draft(folder: Path, draft: Draft, hot: Tensor) -> None:
    folder.mkdir()
    tensors = split_fused(draft.state_dict())
    tensors["d2t"] = hot - torch.arange(len(hot))
    tensors["t2d"] = torch.isin(torch.arange(tiny_text.VOCAB_SIZE), hot)
    config = _config(
        architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1, draft_vocab_size=len(hot)
    )
    _write_model(folder, config, tensors)


def _write_model(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _show_progress(stage: str, done: int, total: int) -> None:
    width = 30 * done // total
    bar = "#" * width + "." * (30 - width)
    print(f"\r[{bar}] {done}/{total} {stage} ", end="", file=sys.stderr, flush=True)
    if done == total:
        print(file=sys.stderr)


def main() -> None:
    started = time.monotonic()
    pair = build_tiny_pair(progress=_show_progress)
    print(f"target         {pair.target}")
    print(f"draft          {pair.draft}")
    print(f"seconds        {time.monotonic() - started:.1f}")
    print(f"accept length  {pair.accept_len:.2f}")


if __name__ == "__main__":
    main()
