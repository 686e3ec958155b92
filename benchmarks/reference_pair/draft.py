"""The EAGLE-3 head: one decoder layer over token embeddings and target states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .llama import Layer, Rope, Shape, Target, rope_table


class DraftLayer(Layer):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, 2 * shape.hidden)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)


class Draft(nn.Module):
    """``hot`` ``[draft_vocab]``, ascending, are the target's ids of the draft's own vocabulary."""

    hot: Tensor
    aux_scale: Tensor

    def __init__(self, shape: Shape, hot: Tensor) -> None:
        super().__init__()
        self._shape = shape
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.midlayer = DraftLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden, len(hot), bias=False)
        self.register_buffer("hot", hot)
        # Target states differ in size by layer and feature. Dividing them by their RMS makes `fc`
        # easy to train; `checkpoint` multiplies it into `fc`, and nothing of it is left.
        self.register_buffer("aux_scale", torch.ones(3 * shape.hidden))

    def forward(self, embeds: Tensor, aux: Tensor, steps: int) -> list[Tensor]:
        """Normed states of ``steps`` consecutive draft steps, begun at every position at once.

        ``embeds[:, p]`` belongs to token ``p + 1`` and ``aux[:, p]`` to token ``p``; step ``j``
        begun at ``p`` reads token ``p + 1 + j`` and predicts token ``p + 2 + j``. Each result is
        ``[batch, anchors, hidden]`` with ``anchors = embeds.shape[1] - steps + 1``.

        A step sees what it sees in a round of SGLang: the entries up to ``p`` made from target
        states, then one entry for each earlier step of its own round, and its own. The state that
        goes on to the next step is the one before the final norm.
        """
        layer = self.midlayer
        anchors = embeds.shape[1] - steps + 1
        # In float32 under autocast too, like everything that norms read and residuals add up.
        hidden = self.fc(aux[:, :anchors] / self.aux_scale).float()
        future = torch.ones(anchors, anchors, dtype=torch.bool, device=embeds.device).triu_(1)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        states = []
        for step in range(steps):
            window = layer.input_layernorm(embeds[:, step : step + anchors])
            joined = torch.cat([window, layer.hidden_norm(hidden)], dim=-1)
            query, key, value = self._project(joined, step)
            keys.append(key)
            values.append(value)
            hidden = layer.finish(hidden, _attend(query, keys, values, future))
            states.append(self.norm(hidden))
        return states

    def _project(self, joined: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        positions = torch.arange(first, first + joined.shape[1], device=joined.device)
        rope: Rope = rope_table(self._shape, positions)
        query, key, value = self.midlayer.self_attn.project(joined, rope)
        groups = self._shape.heads // self._shape.kv_heads
        return query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)

    def initialise(self, target: Target, aux: Tensor) -> None:
        """Begin with the target's own output matrix and final norm. ``aux`` ``[n, 3 * hidden]``:
        a sample of target states."""
        self.aux_scale.copy_(aux.float().square().mean(0).sqrt().clamp_min(1e-3))
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)
        with torch.no_grad():
            self.norm.weight.copy_(target.norm.weight)
            self.lm_head.weight.copy_(target.embed_tokens.weight[self.hot])

    def checkpoint(self) -> dict[str, Tensor]:
        """The tensors that ``LlamaForCausalLMEagle3`` loads, in bf16; the embedding is the
        target's, which SGLang shares with the draft."""
        state = {k: v for k, v in self.state_dict().items() if k not in ("hot", "aux_scale")}
        state["fc.weight"] = state["fc.weight"] / self.aux_scale
        tensors = {name: v.to("cpu", torch.bfloat16).contiguous() for name, v in state.items()}
        hot = self.hot.cpu()
        tensors["d2t"] = hot - torch.arange(len(hot))
        tensors["t2d"] = torch.isin(torch.arange(self._shape.vocab), hot)
        return tensors

    def load_checkpoint(self, tensors: dict[str, Tensor]) -> None:
        """The opposite of ``checkpoint``."""
        device = self.hot.device
        hot = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        weights = {k: v.float() for k, v in tensors.items() if k not in ("d2t", "t2d")}
        state = {**weights, "hot": hot, "aux_scale": torch.ones_like(self.aux_scale)}
        self.load_state_dict({name: tensor.to(device) for name, tensor in state.items()})


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor], future: Tensor) -> Tensor:
    """Attention of every anchor to the synced entries ``keys[0]`` up to itself, and to the entries
    of its own round, one in each of ``keys[1:]``. All ``[batch, heads, anchors, head_dim]``."""
    scale = query.shape[-1] ** -0.5
    synced = (query @ keys[0].mT * scale).masked_fill(future, float("-inf"))
    own = [(query * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat([synced, *own], dim=-1).softmax(dim=-1).to(query.dtype)
    anchors = future.shape[0]
    result = weights[..., :anchors] @ values[0]
    for index, value in enumerate(values[1:]):
        result = result + weights[..., anchors + index, None] * value
    return result
