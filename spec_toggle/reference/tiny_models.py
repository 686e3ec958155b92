"""A minimal Llama and a minimal EAGLE-3 draft in plain PyTorch, just enough to train both.

Weights are named as in the published checkpoints, except that q/k/v and gate/up are one matrix each
while training; `split_fused` undoes that.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = 96
INTERMEDIATE = 192
LAYERS = 8
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
ROPE_THETA = 10000.0
NORM_EPS = 1e-5
MAX_POSITIONS = 2048
# The inputs of these layers are what SGLang hands to an EAGLE-3 draft by default.
AUX_LAYERS = (2, LAYERS // 2, LAYERS - 3)

_Q, _KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


def rope_table(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of `positions`, each `[len(positions), HEAD_DIM]`."""
    inverse = ROPE_THETA ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = positions.float()[:, None] * inverse
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat([-second, first], dim=-1) * rope[1]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(width, _Q + 2 * _KV, bias=False)
        self.o_proj = nn.Linear(_Q, HIDDEN, bias=False)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each `[batch, HEADS, tokens, HEAD_DIM]`, rotated."""
        batch, tokens, _ = x.shape
        heads = self.qkv_proj(x).view(batch, tokens, HEADS + 2 * KV_HEADS, HEAD_DIM).transpose(1, 2)
        rotated = _rotate(heads[:, : HEADS + KV_HEADS], rope)
        groups = HEADS // KV_HEADS
        key = rotated[:, HEADS:].repeat_interleave(groups, dim=1)
        value = heads[:, HEADS + KV_HEADS :].repeat_interleave(groups, dim=1)
        return rotated[:, :HEADS], key, value

    def output(self, attended: Tensor) -> Tensor:
        result: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return result


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        result: Tensor = self.down_proj(F.silu(gate) * up)
        return result


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention(HIDDEN)
        self.mlp = Mlp()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=NORM_EPS)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=NORM_EPS)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = self.self_attn.project(self.input_layernorm(x), rope)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.self_attn.output(attended)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Target(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=NORM_EPS)
        self.lm_head = nn.Linear(HIDDEN, vocab, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[batch, tokens, vocab]` and aux hidden states `[batch, tokens, 3 * HIDDEN]`."""
        rope = rope_table(torch.arange(tokens.shape[1]))
        x = self.embed_tokens(tokens)
        aux = []
        for index, layer in enumerate(self.layers):
            if index in AUX_LAYERS:
                aux.append(x)
            x = layer(x, rope)
        return self.lm_head(self.norm(x)), torch.cat(aux, dim=-1)


class DraftLayer(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention(2 * HIDDEN)
        self.hidden_norm = nn.RMSNorm(HIDDEN, eps=NORM_EPS)


class Draft(nn.Module):
    def __init__(self, draft_vocab: int) -> None:
        super().__init__()
        self.fc = nn.Linear(len(AUX_LAYERS) * HIDDEN, HIDDEN, bias=False)
        self.midlayer = DraftLayer()
        self.norm = nn.RMSNorm(HIDDEN, eps=NORM_EPS)
        self.lm_head = nn.Linear(HIDDEN, draft_vocab, bias=False)

    def forward(self, embeds: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Logits of `steps` consecutive draft steps, begun at every position at once.

        `embeds[:, p]` belongs to token `p + 1` and `aux[:, p]` to token `p`; step `j` begun at `p`
        reads token `p + 1 + j` and predicts token `p + 2 + j`. Each result is
        `[batch, anchors, draft_vocab]` with `anchors = tokens - steps + 1`.

        A step sees what it sees in a real round: the synced entries up to `p`, made from target
        states, and then one entry for each earlier step of the same round.
        """
        layer = self.midlayer
        anchors = embeds.shape[1] - steps + 1
        hidden = self.fc(aux[:, :anchors])
        causal = torch.full((anchors, anchors), float("-inf")).triu(1)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step in range(steps):
            window = layer.input_layernorm(embeds[:, step : step + anchors])
            rope = rope_table(torch.arange(step, step + anchors))
            joined = torch.cat([window, layer.hidden_norm(hidden)], dim=-1)
            query, key, value = layer.self_attn.project(joined, rope)
            keys.append(key)
            values.append(value)
            hidden = hidden + layer.self_attn.output(_attend(query, keys, values, causal))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor], causal: Tensor) -> Tensor:
    scale = HEAD_DIM**-0.5
    scores = [query @ keys[0].transpose(-1, -2) * scale + causal]
    scores += [(query * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    synced = keys[0].shape[2]
    result = weights[..., :synced] @ values[0]
    for index, value in enumerate(values[1:]):
        result = result + weights[..., synced + index, None] * value
    return result


def split_fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoint names and matrices from the fused ones of a `state_dict`."""
    parts = {
        "qkv_proj": (("q_proj", "k_proj", "v_proj"), (_Q, _KV, _KV)),
        "gate_up_proj": (("gate_proj", "up_proj"), (INTERMEDIATE, INTERMEDIATE)),
    }
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        fused = next((key for key in parts if key in name), None)
        if fused is None:
            result[name] = tensor.contiguous().clone()
            continue
        names, sizes = parts[fused]
        for part, rows in zip(names, tensor.split(list(sizes)), strict=True):
            result[name.replace(fused, part)] = rows.contiguous().clone()
    return result
