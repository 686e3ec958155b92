"""The closed-loop client: ``python -m benchmarks.client < job.json``, a process of its own.

SGLang's bench_serving is not used because it builds its prompts with a tokenizer, and these servers
run dummy weights with ``--skip-tokenizer-init``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """One level: ``concurrency`` workers share ``requests`` requests, after a warm-up.

    Random prompts of ``input_len`` are answered with exactly ``output_len`` tokens; ``prompts``
    (token ids), where given, with at most as many: past its end a real answer is no text.
    """

    url: str
    concurrency: int
    requests: int
    input_len: int
    output_len: int
    vocab_size: int
    seed: str
    warmup_output: int = 32
    timeout_s: float = 300.0
    prompts: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Trace:
    """One request as its client saw it; times in seconds of one clock.

    ``paces``: seconds per token from each event to the next.
    """

    sent: float
    first: float
    last: float
    first_tokens: int
    tokens: int
    rounds: int = 0
    correct_drafts: int = 0
    cached_tokens: int = 0
    paces: tuple[float, ...] = ()

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first event; None for a one-event answer."""
        after = self.tokens - self.first_tokens
        return (self.last - self.first) / after if after > 0 else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between closest ranks; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summarise(traces: Sequence[Trace]) -> dict[str, Any]:
    """A level's numbers. Throughput is all output tokens over first send to last token."""
    wall_s = max(t.last for t in traces) - min(t.sent for t in traces)
    tokens = sum(t.tokens for t in traces)
    rounds = sum(t.rounds for t in traces)
    correct = sum(t.correct_drafts for t in traces)
    tpots = [t.tpot_s for t in traces if t.tpot_s is not None]
    ttfts = [t.first - t.sent for t in traces]
    paces = [pace for t in traces for pace in t.paces]
    decoded = tokens - len(traces)  # a prefill makes each request's first token
    return {
        "output_tok_s": _rounded(tokens / wall_s, 2),
        "tpot_ms_p50": _milliseconds(percentile(tpots, 50)),
        "tpot_ms_p99": _milliseconds(percentile(tpots, 99)),
        # Between the prefills: a request's own time per token has those of others in it.
        "pace_ms_p50": _milliseconds(percentile(paces, 50)),
        "ttft_ms_p50": _milliseconds(percentile(ttfts, 50)),
        "ttft_ms_p99": _milliseconds(percentile(ttfts, 99)),
        # Over rounds alone; without the plugin the server divides all tokens by its rounds.
        "accept_len": _rounded(1 + correct / rounds if rounds else None, 3),
        # Share of decoded tokens that rounds made; a last round may overshoot a request's end.
        "round_share": _rounded(min(1.0, (rounds + correct) / decoded) if decoded else None, 3),
        "requests": len(traces),
        "output_tokens": tokens,
        "cached_tokens": sum(t.cached_tokens for t in traces),
        "wall_s": _rounded(wall_s, 3),
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _milliseconds(seconds: float | None) -> float | None:
    return _rounded(None if seconds is None else seconds * 1000, 4)


def make_bodies(job: Job, seed: str, output_lens: Iterable[int]) -> list[bytes]:
    """Request bodies, serialised ahead so that the loop only sends. The seed draws the prompts."""
    rng = random.Random(seed)
    is_random = not job.prompts
    prompts = _random_prompts(job, rng) if is_random else _given_prompts(job, rng)
    bodies: list[bytes] = []
    for output_len, prompt in zip(output_lens, prompts, strict=False):
        params = {"temperature": 0, "max_new_tokens": output_len, "ignore_eos": is_random}
        body = {"input_ids": prompt, "sampling_params": params, "stream": True}
        bodies.append(json.dumps(body).encode())
    return bodies


def make_warmup(job: Job) -> list[bytes]:
    """Three waves or more of short answers that end at different times.

    So the next ones are prefilled in batches of many sizes: the first batch of a size was seen to
    take half a second more.
    """
    longest = min(job.warmup_output, job.output_len)
    lengths = itertools.cycle([max(1, longest * quarter // 4) for quarter in (4, 1, 3, 2)])
    lens = itertools.islice(lengths, max(3 * job.concurrency, min(8 * job.concurrency, 128)))
    return make_bodies(job, f"warm-{job.seed}", lens)


def _random_prompts(job: Job, rng: random.Random) -> Iterator[Sequence[int]]:
    while True:
        yield [rng.randrange(3, job.vocab_size) for _ in range(job.input_len)]


def _given_prompts(job: Job, rng: random.Random) -> Iterator[Sequence[int]]:
    """All of them in random order, again and again."""
    while True:
        yield from rng.sample(job.prompts, len(job.prompts))


async def _request(session: Any, url: str, body: bytes) -> Trace:
    sent = time.perf_counter()
    events: list[tuple[float, int]] = []
    meta: dict[str, Any] = {}
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{url}/generate", data=body, headers=headers) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
                continue
            now = time.perf_counter()
            event = json.loads(line[5:])
            if "error" in event:
                raise RuntimeError(f"the server answered {event['error']}")
            meta = event["meta_info"]
            events.append((now, int(meta["completion_tokens"])))
    if not events:
        raise RuntimeError("the server closed a stream without an event")
    (first, first_tokens), (last, tokens) = events[0], events[-1]
    return Trace(
        sent,
        first,
        last,
        first_tokens,
        tokens,
        int(meta.get("spec_verify_ct", 0)),
        int(meta.get("spec_num_correct_drafts", 0)),
        int(meta.get("cached_tokens", 0)),
        paces_of(events),
    )


def paces_of(events: Sequence[tuple[float, int]]) -> tuple[float, ...]:
    """``events``: when each came, s, and tokens until then. An event without a token is none."""
    with_tokens = [b for a, b in itertools.pairwise([(0.0, 0), *events]) if b[1] > a[1]]
    pairs = itertools.pairwise(with_tokens)
    return tuple((later - time) / (more - tokens) for (time, tokens), (later, more) in pairs)


async def _closed_loop(session: Any, url: str, bodies: list[bytes], workers: int) -> list[Trace]:
    waiting = iter(bodies)

    async def work() -> list[Trace]:
        return [await _request(session, url, body) for body in waiting]

    per_worker = await asyncio.gather(*(work() for _ in range(workers)))
    return [trace for traces in per_worker for trace in traces]


async def run_job(job: Job) -> dict[str, Any]:
    """Warm the level up, then measure it."""
    import aiohttp

    warmup = make_warmup(job)
    bodies = make_bodies(job, job.seed, [job.output_len] * job.requests)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=job.timeout_s),
        read_bufsize=1 << 20,
    ) as session:
        await _closed_loop(session, job.url, warmup, job.concurrency)
        traces = await _closed_loop(session, job.url, bodies, job.concurrency)
    short = [t.tokens for t in traces if t.tokens != job.output_len and not job.prompts]
    if short:
        raise RuntimeError(f"{len(short)} answers have another length, such as {short[0]} tokens")
    return summarise(traces)


def encode_job(job: Job) -> str:
    return json.dumps(asdict(job))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_job(Job(**json.load(sys.stdin))))))
