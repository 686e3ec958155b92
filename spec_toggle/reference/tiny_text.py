"""Synthetic English for the tiny model pair, and the tokenizer trained on it.

Every slot of the grammar (name, verb, object, place, colour, number) walks its own cycle, and the
cycles have coprime lengths: the most likely next word is always a function of the text so far, so a
model that learned it continues greedily with clear margins and without ever repeating itself soon.
With probability `noise` a word is drawn at random instead, so that the text also shows exceptions.
"""

import json
import random
import zlib
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 384
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
_HOLD_OUT_ONE_IN = 8
_TRAIN_NOISE = 0.05
_RANDOM_START = 0.5

_SLOTS: dict[str, tuple[str, ...]] = {
    "name": (
        "Ann",
        "Ben",
        "Carl",
        "Dora",
        "Emma",
        "Finn",
        "Gina",
        "Hugo",
        "Iris",
        "Jack",
        "Kate",
        "Leo",
        "Mia",
    ),
    "verb": ("took", "sent", "sold", "lent", "moved", "showed", "mailed"),
    "object": (
        "lamp",
        "book",
        "clock",
        "chair",
        "box",
        "drum",
        "map",
        "kite",
        "bell",
        "cup",
        "ring",
    ),
    "place": ("park", "school", "market", "farm", "bank", "port", "hotel", "museum", "garden"),
    "color": ("red", "blue", "green", "black", "white"),
    "number": ("12", "47", "31", "68", "25", "90", "53", "16"),
}
_TEMPLATES = (
    "{name} {verb} the {object} to the {place}.",
    "In the {place} {name} counted {number} coins.",
    '{{"name": "{name}", "age": {number}}}',
    "Then {name} found a {color} {object} near the {place}.",
    "The {color} {object} was {number} years old, so {name} kept it.",
    '{{"item": "{object}", "color": "{color}", "count": {number}}}',
)


def is_held_out(sentence: str) -> bool:
    """Whether a sentence is kept out of every training text."""
    return zlib.crc32(sentence.encode()) % _HOLD_OUT_ONE_IN == 0


def document(
    rng: random.Random, characters: int, noise: float = _TRAIN_NOISE, held_out: bool = False
) -> str:
    """At least `characters` of text whose sentences are all held out, or none of them."""
    parts: list[str] = []
    length = 0
    # Half of all first words are the cycle's first, so that a short prompt has a clear winner.
    turn = _advance(rng, -1, len(_TEMPLATES), _RANDOM_START)
    at = {slot: _advance(rng, -1, len(words), _RANDOM_START) for slot, words in _SLOTS.items()}
    while length < characters:
        turn, at, sentence = _next_sentence(rng, turn, at, noise, held_out)
        parts.append(sentence + ("\n" if sentence.endswith("}") else " "))
        length += len(parts[-1])
    return "".join(parts)


def _next_sentence(
    rng: random.Random, turn: int, at: dict[str, int], noise: float, held_out: bool
) -> tuple[int, dict[str, int], str]:
    while True:
        next_turn = _advance(rng, turn, len(_TEMPLATES), noise)
        template = _TEMPLATES[next_turn]
        moved = dict(at)
        for slot, words in _SLOTS.items():
            if f"{{{slot}}}" in template:
                moved[slot] = _advance(rng, at[slot], len(words), noise)
        sentence = template.format(**{slot: _SLOTS[slot][i] for slot, i in moved.items()})
        if is_held_out(sentence) == held_out:
            return next_turn, moved, sentence
        # Without more noise the same sentence would come back.
        noise = min(1.0, noise + 0.1)


def _advance(rng: random.Random, index: int, length: int, noise: float) -> int:
    return rng.randrange(length) if rng.random() < noise else (index + 1) % length


def held_out_prompts(n: int, seed: int) -> list[str]:
    """`n` prompts of 10 to 200 characters, cut from documents without one training sentence.

    They end with a whole word: after half a word the model has never seen how to go on.
    """
    rng = random.Random(f"held-out-{seed}")
    texts = [document(rng, 200, held_out=True) for _ in range(n)]
    return [text[: rng.randint(24, 200)].rsplit(" ", 1)[0] for text in texts]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` entries: any text is encodable and decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the two files from which transformers' `AutoTokenizer` loads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
