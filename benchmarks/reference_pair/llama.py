"""A plain Llama in PyTorch: whole texts at once with the states an EAGLE-3 draft reads, or one
token of many texts. Module names are those of checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    norm_eps: float
    max_positions: int

    @classmethod
    def read(cls, folder: Path) -> Shape:
        config = json.loads((folder / "config.json").read_text())
        return cls(
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            vocab=config["vocab_size"],
            rope_theta=config["rope_theta"],
            norm_eps=config["rms_norm_eps"],
            max_positions=config["max_position_embeddings"],
        )

    @property
    def aux_layers(self) -> tuple[int, int, int]:
        """The layers whose inputs SGLang hands to a draft (``set_eagle3_layers_to_capture``)."""
        return 2, self.layers // 2, self.layers - 3


def rope_table(shape: Shape, positions: Tensor) -> Rope:
    """Cosine and sine ``[len(positions), head_dim]`` in float32."""
    pairs = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * shape.rope_theta ** -(pairs / shape.head_dim)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = x * rope[0] + torch.cat([-second, first], dim=-1) * rope[1]
    return turned.to(x.dtype)


class Attention(nn.Module):
    """``width`` is the size of its input: twice ``hidden`` in a draft."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self._head_dim = shape.head_dim
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q ``[batch, heads, tokens, head_dim]``, rotated k and v ``[batch, kv_heads, …]``,
        of ``x`` ``[batch, tokens, width]``."""
        linears = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (
            linear(x).unflatten(-1, (-1, self._head_dim)).transpose(1, 2) for linear in linears
        )
        return _rotate(query, rope), _rotate(key, rope), value

    def output(self, attended: Tensor) -> Tensor:
        """``[batch, heads, tokens, head_dim]`` to ``[batch, tokens, hidden]``."""
        result: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return result


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, width)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention, both residual additions included."""
        x = x + self.self_attn.output(attended)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Cache:
    """Keys and values of ``rows`` texts: by layer ``[rows * kv_heads, tokens, head_dim]``."""

    def __init__(self, shape: Shape, rows: int, tokens: int, like: Tensor) -> None:
        self._kv_heads = shape.kv_heads
        size = (rows * shape.kv_heads, tokens, shape.head_dim)
        self.keys = [like.new_empty(size) for _ in range(shape.layers)]
        self.values = [like.new_empty(size) for _ in range(shape.layers)]

    def keep(self, rows: Tensor) -> None:
        """Forget all texts but ``rows`` (indices)."""
        heads = torch.arange(self._kv_heads, device=rows.device)
        index = (rows[:, None] * self._kv_heads + heads).flatten()
        # One after the other: all copies at once would need twice the memory.
        for tensors in (self.keys, self.values):
            for layer, tensor in enumerate(tensors):
                tensors[layer] = tensor[index]


class Target(nn.Module):
    """A Llama with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, shape.hidden) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``tokens`` ``[batch, n]``: normed last states ``[batch, n, hidden]`` and aux hidden
        states ``[batch, n, 3 * hidden]``. Padding belongs on the right, where nothing sees it."""
        rope = rope_table(self.shape, torch.arange(tokens.shape[1], device=tokens.device))
        x = self.embed_tokens(tokens)
        aux = []
        for index, layer in enumerate(self.layers):
            if index in self.shape.aux_layers:
                aux.append(x)
            query, key, value = layer.self_attn.project(layer.input_layernorm(x), rope)
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            x = layer.finish(x, attended)
        return self.norm(x), torch.cat(aux, dim=-1)

    def step(self, tokens: Tensor, position: int, cache: Cache) -> Tensor:
        """Logits ``[rows, vocab]`` after ``tokens`` ``[rows]``, which stand at ``position``."""
        rope = rope_table(self.shape, torch.tensor([position], device=tokens.device))
        x = self.embed_tokens(tokens)[:, None]
        for index, layer in enumerate(self.layers):
            query, key, value = layer.self_attn.project(layer.input_layernorm(x), rope)
            keys, values = cache.keys[index], cache.values[index]
            keys[:, position] = key.reshape(keys.shape[0], -1)
            values[:, position] = value.reshape(keys.shape[0], -1)
            # Query heads of one KV head are rows of one matrix, so that it is read only once.
            grouped = query.reshape(keys.shape[0], -1, self.shape.head_dim)
            scores = grouped @ keys[:, : position + 1].mT * self.shape.head_dim**-0.5
            weights = scores.float().softmax(-1).to(scores.dtype)
            attended = weights @ values[:, : position + 1]
            x = layer.finish(x, attended.view_as(query))
        return self.logits(self.norm(x[:, 0]))

    def logits(self, states: Tensor) -> Tensor:
        """``[..., vocab]`` of normed last states ``[..., hidden]``."""
        return F.linear(states, self.embed_tokens.weight)


def load_target(folder: Path, device: torch.device, dtype: torch.dtype) -> Target:
    """The frozen model of a folder with one safetensors file.

    Raises:
        ValueError: the model does not share its embeddings with its output.
    """
    if not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]:
        raise ValueError(f"{folder}: only a target with tied embeddings is supported")
    with torch.device("meta"):
        target = Target(Shape.read(folder))
    tensors = load_file(str(folder / "model.safetensors"))
    state = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    target.load_state_dict(state, assign=True)
    return target.to(device=device, dtype=dtype).requires_grad_(False).eval()
