"""A Llama GGUF as an ordinary model folder: config, bf16 safetensors, tokenizer, chat template.

transformers keeps GGUF weights packed and cannot save them, so the few steps are taken here: the
``gguf`` package parses and dequantises, names and the row order of q and k are mapped back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_model_folder(gguf_file: Path, folder: Path) -> None:
    """Dequantise ``gguf_file`` (Llama architecture, byte-level BPE with single digits) to bf16."""
    # Imported here: training from a finished folder does not need the package.
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields, {tensor.name for tensor in reader.tensors})
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        # A copy: unquantised tensors are views of the read-only file.
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = unpermute(values, heads[kind])
        tensors[checkpoint_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(fields, config["max_position_embeddings"], folder)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def checkpoint_name(name: str) -> str:
    """``blk.3.attn_q.weight`` as ``model.layers.3.self_attn.q_proj.weight``."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """q or k ``[heads * dim, in]`` from llama.cpp's row order (rotated pairs are neighbours) to the
    checkpoint's (a head's first halves of all pairs, then the second halves)."""
    rows, width = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width)


def _config(fields: dict[str, Any], tensor_names: set[str]) -> dict[str, Any]:
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
        raise ValueError("only a Llama with a byte-level BPE tokenizer is supported")
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        # Stored in single precision: 1e-05 comes back as 9.99999974e-06.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "vocab_size": fields["llama.vocab_size"],
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(fields: dict[str, Any], max_length: int, folder: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    # llama.cpp's pre-tokenizer "smollm": every digit by itself, then GPT-2's words.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in kinds if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{k}_token": tokens[fields[f"tokenizer.ggml.{v}_token_id"]] for k, v in names.items()},
        "chat_template": fields["tokenizer.chat_template"],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
