"""The tiny pair is what engine tests and the demo stand on: check it before blaming the engine."""

import json
import re
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from spec_toggle.reference.tiny_pair import (  # noqa: E402
    DRAFT_VOCAB_SIZE,
    TinyPair,
    build_tiny_pair,
    held_out_prompts,
    training_texts,
)

SENTENCE = re.compile(r"\{.*?\}|[^.{}]+\.")


@pytest.fixture(scope="session")
def pair() -> TinyPair:
    return build_tiny_pair()


def config_of(folder: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((folder / "config.json").read_text())
    return config


def sentences(text: str) -> set[str]:
    return {match.strip() for match in SENTENCE.findall(text)}


def test_draft_is_accepted(pair: TinyPair) -> None:
    assert 1.8 <= pair.accept_len <= 4.0


def test_target_is_deep_enough_for_three_aux_layers(pair: TinyPair) -> None:
    config = config_of(pair.target)
    layers = config["num_hidden_layers"]
    assert isinstance(layers, int) and layers >= 8
    assert len({2, layers // 2, layers - 3}) == 3
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_draft_vocabulary_is_reduced_and_maps_into_the_target(pair: TinyPair) -> None:
    config = config_of(pair.draft)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["num_hidden_layers"] == 1
    vocab = config["vocab_size"]
    assert isinstance(vocab, int) and config["draft_vocab_size"] == DRAFT_VOCAB_SIZE < vocab

    tensors = load_file(pair.draft / "model.safetensors")
    assert tensors["lm_head.weight"].shape[0] == DRAFT_VOCAB_SIZE
    target_ids = (tensors["d2t"] + torch.arange(DRAFT_VOCAB_SIZE)).tolist()
    assert len(set(target_ids)) == DRAFT_VOCAB_SIZE
    assert min(target_ids) >= 0 and max(target_ids) < vocab
    assert tensors["t2d"].nonzero().flatten().tolist() == sorted(target_ids)
    assert target_ids != list(range(DRAFT_VOCAB_SIZE)), "an identity map would hide mapping bugs"


def test_tokenizer_round_trips(pair: TinyPair) -> None:
    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    ascii_text = "".join(map(chr, range(128)))
    for text in (ascii_text, "Zürich 東京", *held_out_prompts(8, seed=5), *training_texts()[:2]):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == config_of(pair.target)["vocab_size"]


def test_transformers_loads_the_tokenizer(pair: TinyPair) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(pair.target)
    text = 'Ann took the lamp. {"name": "Ann", "age": 31}\n  two  spaces , and a comma'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == config_of(pair.target)["eos_token_id"]


def test_cache_hit_is_fast_and_the_same(pair: TinyPair) -> None:
    started = time.monotonic()
    assert build_tiny_pair() == pair
    assert time.monotonic() - started < 1.0


def test_cache_root_is_configurable(
    pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_TOGGLE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / pair.target.parent.name).symlink_to(pair.target.parent)
    assert build_tiny_pair() == build_tiny_pair(tmp_path / "cache")
    assert build_tiny_pair().target.parent.parent == tmp_path / "cache"


def test_held_out_prompts_are_disjoint_from_training() -> None:
    trained = set().union(*map(sentences, training_texts()))
    prompts = held_out_prompts(64, seed=9)
    assert len(trained) > 1000
    whole = set().union(*map(sentences, prompts))
    assert len(whole) > 30
    assert not whole & trained


def test_held_out_prompts_vary_in_length() -> None:
    lengths = [len(prompt) for prompt in held_out_prompts(64, seed=9)]
    assert min(lengths) >= 10 and max(lengths) <= 200
    assert max(lengths) - min(lengths) > 100
    assert held_out_prompts(3, seed=1) == held_out_prompts(3, seed=1)
    assert held_out_prompts(3, seed=1) != held_out_prompts(3, seed=2)
