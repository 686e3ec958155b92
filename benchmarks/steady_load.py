"""Requests in a stepped scheduler: a batch of constant size, measured over a window."""

from __future__ import annotations

import itertools
import operator
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.engine.harness import Request, StepEngine
from tests.engine.host import run_event_loop

TOTALS = ("plain_steps", "rounds", "switches")
ENDLESS = 4096  # output tokens: more than a window gives


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
        return Window(*map(operator.sub, self, start))

    def plus(self, other: Window) -> Window:
        return Window(*map(operator.add, self, other))

    def summary(self) -> dict[str, Any]:
        """Without a round no accept length, without the toggle no share of plain steps."""
        iterations = self.plain_steps + self.rounds
        return {
            "tokens": self.tokens,
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

    def __init__(self, vocab_size: int, length: int, documents: int = 0, own: int = 32) -> None:
        self._rng = random.Random(length)
        self._vocab_size = vocab_size
        self.has_documents = documents > 0
        self._own = own if documents else length
        self._documents = [self._tokens(length - own) for _ in range(documents)] or [[]]
        self._next = itertools.cycle(self._documents)

    def warm_up(self) -> list[Request]:
        return [Request(doc, 0, 1) for doc in self._documents if doc]

    def take(self, count: int, output_len: int = ENDLESS) -> list[Request]:
        """New requests, the documents in turn."""
        shared = itertools.islice(self._next, count)
        return [Request([*doc, *self._tokens(self._own)], 0, output_len) for doc in shared]

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]


class Load:
    """Requests in ``engine``'s own event loop, and what they have come to."""

    def __init__(
        self,
        engine: StepEngine,
        requests: list[Request],
        successor: Callable[[], Request] | None = None,
    ) -> None:
        """``successor``: makes the request that takes an ended one's place; None: nobody does."""
        self._engine = engine
        self._scheduler = engine.scheduler
        self._requests = requests
        self._successor = successor
        self._gone = Window()

    def run(self, script: Iterator[None]) -> None:
        """Submit the requests, advance ``script`` in every iteration until it ends, then stop."""
        self._live = [self._engine.submit(request) for request in self._requests]
        steps = itertools.chain(script, self._stop())

        def ingest(*_: Any, **__: Any) -> list[Any]:
            next(steps)
            if self._successor is not None:
                self._replace_ended(self._successor)
            return []

        run_event_loop(self._scheduler, ingest)

    def until_all_decode(self) -> Iterator[None]:
        while not all(req.output_ids for req in self._live):
            yield

    @property
    def tokens(self) -> int:
        """Output tokens of all requests until now."""
        return self._gone.tokens + _output(self._live)

    @property
    def ended(self) -> int:
        return sum(req.finished() for req in self._live)

    def seen(self) -> Window:
        seen = _with_requests(self._gone, self._live)._replace(seconds=time.perf_counter())
        if self._engine.config.sync is None:
            return seen
        totals = self._engine.toggle.controller.totals
        return seen._replace(**{name: getattr(totals, name) for name in TOTALS})

    def _replace_ended(self, successor: Callable[[], Request]) -> None:
        for index, req in enumerate(self._live):
            if req.finished():
                self._gone = _with_requests(self._gone, [req])
                self._live[index] = self._engine.submit(successor())

    def _stop(self) -> Iterator[None]:
        self._successor = None
        # A request that waits when it is aborted just leaves the queue.
        waiting = {req.rid for req in self._scheduler.waiting_queue}
        started = [req for req in self._live if req.rid not in waiting]
        self._engine.abort_all()
        while not all(req.finished() for req in started):
            yield
        for _ in range(4):  # overlap processes the last results one iteration late
            yield
        self._scheduler.gracefully_exit = True
        yield


class SteadyLoad(Load):
    """A batch of constant size: nobody comes or goes."""

    def measure(self, settle: int, window_s: float) -> tuple[Window, float]:
        """Serve until all requests decode and ``settle`` tokens per request more, for which it
        waits ``window_s`` at most; then a window of ``window_s``; then stop.

        A window is a time, as long for all arms: an iteration takes longer the more context it
        reads, so an arm that is given more time has to read more.

        Returns:
            The window, and the seconds from the arrival to everybody's first token.

        Raises:
            RuntimeError: a request ended, so the batch was not what it should have been.
        """
        self.run(self._phases(settle, window_s))
        if self._ended:
            raise RuntimeError(f"{self._ended} requests ended before the window did")
        return self._last.since(self._first), self._prefill_s

    def _phases(self, settle: int, window_s: float) -> Iterator[None]:
        arrival = time.perf_counter()
        yield from self.until_all_decode()
        self._prefill_s = time.perf_counter() - arrival
        target = self.tokens + settle * len(self._live)
        end = time.perf_counter() + window_s
        while self.tokens < target and time.perf_counter() < end:
            yield
        self._first = self.seen()
        while time.perf_counter() < self._first.seconds + window_s:
            yield
        self._last = self.seen()
        self._ended = self.ended


def _output(reqs: list[Any]) -> int:
    """Tokens that clients get: a round may give more than were asked for."""
    return sum(min(len(req.output_ids), req.sampling_params.max_new_tokens) for req in reqs)


def _with_requests(window: Window, reqs: list[Any]) -> Window:
    return window._replace(
        tokens=window.tokens + _output(reqs),
        verifications=window.verifications + sum(req.spec_verify_ct for req in reqs),
        accepted=window.accepted + sum(req.spec_num_correct_drafts for req in reqs),
    )
