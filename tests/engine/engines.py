"""One engine at a time, rebuilt when a test asks for another configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.engine.harness import (
    EngineConfig,
    Outcome,
    Request,
    ScriptedPolicy,
    StepEngine,
    activate_reference_engine,
)

activate_reference_engine()


class Engines:
    """Hands out engines, and the greedy tokens that a server without speculation gives."""

    def __init__(self, target: str, draft: str) -> None:
        self._paths = (target, draft)
        self.target = target
        self._engine: StepEngine | None = None
        self._references: dict[str, Outcome] = {}

    def get(self, config: EngineConfig) -> StepEngine:
        if self._engine is None or self._engine.config != config:
            self.close()
            self._engine = StepEngine(config, *self._paths)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def reference(
        self, requests: Sequence[Request], config: EngineConfig | None = None
    ) -> list[Outcome]:
        """Outcomes without speculation. Greedy tokens depend on the request alone."""
        config = config or EngineConfig("none", sync=None)
        keys = [
            f"{config} {r.prompt} {r.max_new_tokens} {r.sampling} {r.logprob}" for r in requests
        ]
        missing = {k: r for k, r in zip(keys, requests, strict=True) if k not in self._references}
        if missing:
            outcomes = self.get(config).run(list(missing.values()))
            self._references.update(zip(missing, outcomes, strict=True))
        return [self._references[key] for key in keys]


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    from spec_toggle.reference.tiny_pair import build_tiny_pair

    pair = build_tiny_pair()
    held = Engines(str(pair.target), str(pair.draft))
    yield held
    held.close()


@pytest.fixture
def wrong_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who computes what the draft needs of a prompt may not matter."""
    monkeypatch.setattr(ScriptedPolicy, "wrong_every", 3)


@pytest.fixture(scope="session")
def encode(engines: Engines) -> object:
    """Text to token ids, with the tiny pair's tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(engines._paths[0])
    return lambda text: tokenizer.encode(text, add_special_tokens=False)
