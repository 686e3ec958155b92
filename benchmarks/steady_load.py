"""A fixed number of requests in a stepped scheduler: as one ends, the next arrives."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.engine.harness import Request, StepEngine
from tests.engine.host import run_event_loop

TOTALS = ("plain_steps", "rounds", "switches")


class Window(NamedTuple):
    """What happened in a time: ``seconds``; output ``tokens`` of all requests; per request and
    round, ``verifications`` and the ``accepted`` drafts in them; the toggle's ``plain_steps``,
    ``rounds`` and ``switches``."""

    seconds: float = 0.0
    tokens: int = 0
    verifications: int = 0
    accepted: int = 0
    plain_steps: int = 0
    rounds: int = 0
    switches: int = 0

    def since(self, start: Window) -> Window:
        return Window(*(mine - its for mine, its in zip(self, start, strict=True)))

    def summary(self) -> dict[str, Any]:
        """Without a round no accept length, without the toggle no share of plain steps."""
        iterations = self.plain_steps + self.rounds
        return {
            "output_tok_s": self.tokens / self.seconds,
            "accept_len": 1 + self.accepted / self.verifications if self.verifications else None,
            "plain_share": self.plain_steps / iterations if iterations else None,
            "switches": self.switches,
        }


class Prompts:
    """Random prompts of ``length`` tokens: a shared document and a part of their own.

    ``documents`` > 0: all but the last ``own`` tokens are one of so many documents, which the
    prefix cache holds once it has seen them. Decoding still reads every token of them.
    """

    def __init__(
        self, vocab_size: int, length: int, output_len: int, documents: int = 0, own: int = 32
    ) -> None:
        self._rng = random.Random(length)
        self._vocab_size = vocab_size
        self._output_len = output_len
        self._own = own if documents else length
        self._documents = [self._tokens(length - own) for _ in range(documents)] or [[]]

    def warm_up(self) -> list[Request]:
        return [Request(doc, 0, 1) for doc in self._documents if doc]

    def initial(self, count: int) -> list[Request]:
        """As if service had been going on: outputs with an even share of every length left."""
        lengths = [1 + (i * self._output_len) // count for i in range(count)]
        self._rng.shuffle(lengths)
        return [next(self.next(length)) for length in lengths]

    def next(self, length: int | None = None) -> Iterator[Request]:
        while True:
            prompt = [*self._rng.choice(self._documents), *self._tokens(self._own)]
            yield Request(prompt, 0, length or self._output_len)

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]


class SteadyLoad:
    """Feeds ``engine``'s own event loop, and reads its requests before and after the window."""

    def __init__(self, engine: StepEngine, prompts: Prompts, size: int) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._initial = prompts.initial(size)
        self._next = prompts.next()
        self._size = size
        self._live: list[Any] = []
        self._ended = Window()

    def measure(self, settle_s: float, window_s: float) -> Window:
        """Serve until all initial requests decode, ``settle_s`` more, then a window; then stop."""
        for request in self._initial:
            self._admit(request)
        self._phase = self._phases(settle_s, window_s)
        run_event_loop(self._scheduler, self._ingest)
        return self._last.since(self._first)

    def _ingest(self, *_: Any, **__: Any) -> list[Any]:
        next(self._phase)
        return []

    def _phases(self, settle_s: float, window_s: float) -> Iterator[None]:
        while self._scheduler.waiting_queue or not self._live[-1].output_ids:
            self._top_up()
            yield
        yield from self._serve(settle_s)
        self._first = self._seen()
        yield from self._serve(window_s)
        self._last = self._seen()
        self._engine.abort_all()
        while not all(req.finished() for req in self._live):
            yield
        for _ in range(4):  # overlap processes the last results one iteration late
            yield
        self._scheduler.gracefully_exit = True
        yield

    def _serve(self, seconds: float) -> Iterator[None]:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._top_up()
            yield

    def _top_up(self) -> None:
        ended = [req for req in self._live if req.finished()]
        if ended:
            self._ended = self._add(self._ended, ended)
            self._live = [req for req in self._live if not req.finished()]
        while len(self._live) < self._size:
            self._admit(next(self._next))

    def _admit(self, request: Request) -> None:
        self._live.append(self._engine.submit(request))

    def _seen(self) -> Window:
        seen = self._add(self._ended, self._live)._replace(seconds=time.perf_counter())
        if self._engine.config.sync is None:
            return seen
        totals = self._engine.toggle.controller.totals
        return seen._replace(**{name: getattr(totals, name) for name in TOTALS})

    @staticmethod
    def _add(total: Window, reqs: list[Any]) -> Window:
        return total._replace(
            tokens=total.tokens + sum(len(req.output_ids) for req in reqs),
            verifications=total.verifications + sum(req.spec_verify_ct for req in reqs),
            accepted=total.accepted + sum(req.spec_num_correct_drafts for req in reqs),
        )
