"""The folder of a trained head: weights, configuration, and a card that says how it was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from .draft import Draft
from .llama import Shape

_CARD = """# EAGLE-3 head for SmolLM2-135M-Instruct

Drafts for the SmolLM2-135M-Instruct of the PyPI package `{package}` (Q4_1, dequantised to bf16), in
the format that SGLang serves as `LlamaForCausalLMEagle3`. {parameters:.1f} M parameters,
{megabytes:.1f} MB in bf16; the embedding is the target's. It reads the inputs of the layers
{aux_layers} and names {draft_vocab} of {vocab} tokens, which are {coverage:.1%} of the tokens that
the target wrote for the training.

## Made by
```
{command}
```
On {device}, torch {torch}. The target answered the training prompts of
`benchmarks/reference_pair/prompts.toml` itself: {documents} texts, {tokens:.2f} M tokens, in
{generate_seconds:.0f} s. The first answer to each of {prompts} prompts is greedy, further ones are
sampled at temperatures {temperatures}. Training took {train_seconds:.0f} s: {updates} updates over
{seen:.1f} M tokens, {steps} steps of training-time test. Seed {seed}; both phases end by the clock,
so another machine makes another head. `card.json` has all figures, and the log.

## Acceptance
A simulated greedy chain of three drafts (3-1-4), over the target's own answers of at most
{new_tokens} tokens to {held_out} prompts whose templates and topics are in no training prompt:
accept length **{accept_len:.2f}** (accepted drafts and the bonus token; {rounds} rounds).

| draft step | accepted, of the rounds that came to it |
|---:|---:|
{rows}

## Licence
Apache-2.0, like the target (HuggingFaceTB/SmolLM2-135M-Instruct), whose output trained it.
"""


def write_head(folder: Path, draft: Draft, shape: Shape, record: dict[str, Any]) -> None:
    """Write ``folder``: what SGLang loads, ``card.json`` (``record``) and ``README.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = draft.checkpoint()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = head_config(shape, len(draft.hot))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    record["model"] = {
        "parameters": sum(p.numel() for p in draft.parameters()),
        "bytes": (folder / "model.safetensors").stat().st_size,
        "aux_layers": list(shape.aux_layers),
        "draft_vocab": len(draft.hot),
        "vocab": shape.vocab,
    }
    (folder / "card.json").write_text(json.dumps(record, indent=2) + "\n")
    (folder / "README.md").write_text(_card(record))


def head_config(shape: Shape, draft_vocab: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "vocab_size": shape.vocab,
        "draft_vocab_size": draft_vocab,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }


def _card(record: dict[str, Any]) -> str:
    model, data, training = record["model"], record["data"], record["training"]
    acceptance = record["held_out"]
    rows = [f"| {step + 1} | {share:.1%} |" for step, share in enumerate(acceptance["by_step"])]
    return _CARD.format(
        package=record["target"]["package"],
        parameters=model["parameters"] / 1e6,
        megabytes=model["bytes"] / 1e6,
        aux_layers=", ".join(map(str, model["aux_layers"])),
        draft_vocab=model["draft_vocab"],
        vocab=model["vocab"],
        coverage=data["coverage"],
        command=record["command"].replace(" --", " \\\n    --"),
        device=record["device"],
        torch=record["torch"],
        documents=data["documents"],
        prompts=data["prompts"],
        tokens=data["tokens"] / 1e6,
        temperatures=", ".join(map(str, data["temperatures"][1:])),
        generate_seconds=data["seconds"],
        train_seconds=training["seconds"],
        updates=training["updates"],
        seen=training["tokens"] / 1e6,
        steps=training["settings"]["steps"],
        seed=training["settings"]["seed"],
        new_tokens=data["new_tokens"],
        held_out=acceptance["prompts"],
        accept_len=acceptance["accept_len"],
        rounds=acceptance["rounds"],
        rows="\n".join(rows),
    )
