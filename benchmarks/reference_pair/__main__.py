"""Fetch the target of the reference pair (``target``), or train its EAGLE-3 head (``train``)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .card import write_head
from .draft import Draft
from .fetch import PACKAGE, FetchError, target_folder
from .generate import TEMPERATURES, Document, generate, generate_for
from .llama import Target, load_target
from .options import parse
from .pair import encode_chats
from .progress import ProgressBar
from .prompts import held_out_prompts, training_prompts
from .simulate import simulate
from .train import Settings, most_frequent, train

_SAMPLE = 64
_PATHS = ("action", "target_dir", "gguf", "out")


def main(argv: list[str] | None = None) -> int:
    options = parse(argv, __doc__)
    try:
        folder = options.target_dir or target_folder(gguf=options.gguf)
        if options.action == "target":
            print(folder)
        else:
            make_head(options, folder)
    except (FetchError, OSError, ValueError) as error:
        print(f"reference_pair: error: {error}", file=sys.stderr)
        return 1
    return 0


def make_head(options: argparse.Namespace, folder: Path) -> None:
    """Generate, train, evaluate, and write the head's folder."""
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = load_target(folder, device, dtype)
    documents, judged, data = make_data(options, folder, target)
    hot, data["coverage"] = most_frequent(documents, target.shape.vocab, options.draft_vocab)
    draft = new_draft(target, hot, documents)
    settings = Settings(
        seconds=options.train_seconds,
        steps=options.steps,
        batch_tokens=options.batch_tokens,
        matrix_lr=options.matrix_lr,
        other_lr=options.other_lr,
        seed=options.seed,
    )
    log = train(
        draft,
        target,
        documents,
        settings,
        evaluate=lambda: simulate(target, draft, judged).record(),
        progress=ProgressBar(),
    )
    last = {key: log[-1][key] for key in ("seconds", "updates", "tokens")}
    # Judged as stored, in bf16.
    draft.load_checkpoint(draft.checkpoint())
    held_out = {"prompts": len(judged), **simulate(target, draft, judged).record()}
    record = {
        **provenance(options, dtype, device),
        "data": data,
        "training": {"settings": asdict(settings), **last, "log": log},
        "held_out": held_out,
    }
    write_head(options.out, draft, target.shape, record)
    print(f"{options.out}: held-out {json.dumps(held_out)}")


def make_data(
    options: argparse.Namespace, folder: Path, target: Target
) -> tuple[list[Document], list[Document], dict[str, Any]]:
    """The training texts, greedy answers to held-out prompts, and the card's entry on both."""
    eos = int(json.loads((folder / "config.json").read_text())["eos_token_id"])
    prompts = encode_chats(folder, training_prompts(options.seed)[: options.prompts])
    held_out = encode_chats(folder, held_out_prompts()[: options.held_out])
    limit = options.new_tokens
    start = time.monotonic()
    documents = generate_for(
        options.generate_seconds, target, prompts, limit, eos, options.rows, ProgressBar()
    )
    data = {
        "prompts": len(prompts),
        "documents": len(documents),
        "tokens": sum(len(document.tokens) for document in documents),
        "seconds": round(time.monotonic() - start, 1),
        "temperatures": [0.0, *TEMPERATURES],
        "new_tokens": limit,
    }
    return documents, generate(target, held_out, torch.zeros(len(held_out)), limit, eos), data


def new_draft(target: Target, hot: torch.Tensor, documents: Sequence[Document]) -> Draft:
    """A draft on the target's device, begun from the target and a few of its states."""
    device = target.embed_tokens.weight.device
    draft = Draft(target.shape, hot).to(device)
    states = []
    for document in documents[:_SAMPLE]:
        with torch.no_grad():
            _, aux = target(torch.tensor([document.tokens], device=device))
        states.append(aux[0, document.prompt_len :])
    draft.initialise(target, torch.cat(states))
    return draft


def provenance(
    options: argparse.Namespace, dtype: torch.dtype, device: torch.device
) -> dict[str, Any]:
    """Where and how. The command repeats every option but the paths, defaults too."""
    named = {k.replace("_", "-"): v for k, v in vars(options).items() if k not in _PATHS}
    words = [f"--{name} {value}" for name, value in named.items() if value is not None]
    return {
        "command": " ".join(["python -m benchmarks.reference_pair train", *words]),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "a CPU",
        "torch": torch.__version__,
        "target": {"package": PACKAGE, "dtype": str(dtype).removeprefix("torch.")},
        "licence": "Apache-2.0",
    }


if __name__ == "__main__":
    sys.exit(main())
