"""The client: streams that rise past the threshold and fall again, and what they received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from spec_toggle.demo.pairs import Prompt

POLL_S = 0.1


@dataclass(frozen=True)
class Completion:
    """One request's output. ``rounds`` and ``correct_drafts`` are 0 without speculation."""

    prompt: Prompt
    token_ids: list[int]
    text: str
    rounds: int
    correct_drafts: int


@dataclass
class Traffic:
    """Sends the prompts in turn, greedy, and counts what comes back. Answers have
    ``max_new_tokens``, or fewer if ``ends`` lets the model end them."""

    session: aiohttp.ClientSession
    url: str
    prompts: Sequence[Prompt]
    max_new_tokens: int
    ends: bool = False
    completions: list[Completion] = field(default_factory=list)
    sent: int = 0
    in_flight: int = 0
    tokens: int = 0
    text: str = ""
    _shown: object | None = None

    async def request(self, prompt: Prompt | None = None) -> Completion:
        if prompt is None:
            prompt = self.prompts[self.sent % len(self.prompts)]
        self.sent += 1
        self.in_flight += 1
        try:
            completion = await self._stream(prompt)
        finally:
            self.in_flight -= 1
        self.completions.append(completion)
        return completion

    async def _stream(self, prompt: Prompt) -> Completion:
        sampling = {
            "temperature": 0,
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": not self.ends,
        }
        body = {"text": prompt.text, "sampling_params": sampling, "stream": True}
        last: dict[str, Any] = {"output_ids": [], "text": ""}
        async with self.session.post(f"{self.url}/generate", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                chunk = line.decode().removeprefix("data:").strip()
                if not chunk or chunk == "[DONE]":
                    continue
                received = json.loads(chunk)
                if "error" in received:
                    raise aiohttp.ClientPayloadError(str(received["error"]))
                # Each chunk holds the whole output so far.
                self.tokens += len(received["output_ids"]) - len(last["output_ids"])
                self._show(response, prompt.shown + received["text"])
                last = received
        self._shown = None if self._shown is response else self._shown
        meta = last.get("meta_info", {})
        rounds, correct = meta.get("spec_verify_ct", 0), meta.get("spec_num_correct_drafts", 0)
        return Completion(prompt, last["output_ids"], last["text"], rounds, correct)

    def _show(self, stream: object, text: str) -> None:
        """``text`` follows one stream to its end: a mix of all could not be read."""
        self._shown = stream if self._shown is None else self._shown
        if self._shown is stream:
            self.text = text.replace("\n", " ")

    async def rise_and_fall(self, low: int, high: int, burst_requests: int = 2) -> None:
        """``low`` streams throughout; ``high - low`` more join in the middle and leave."""
        done = asyncio.Event()

        async def steady() -> None:
            while not done.is_set():
                await self.request()

        async def burst() -> None:
            for _ in range(burst_requests):
                await self.request()

        async def conduct() -> None:
            await self._until(3 * low)
            await asyncio.gather(*(burst() for _ in range(high - low)))
            await self._until(len(self.completions) + 3 * low)
            done.set()

        await asyncio.gather(conduct(), *(steady() for _ in range(low)))

    async def replay(self, prompts: Sequence[Prompt], streams: int) -> None:
        """Send ``prompts``, at most ``streams`` at a time."""
        rest = iter(prompts)

        async def work() -> None:
            for prompt in rest:
                await self.request(prompt)

        await asyncio.gather(*(work() for _ in range(streams)))

    async def _until(self, count: int) -> None:
        while len(self.completions) < count:
            await asyncio.sleep(POLL_S)


async def poll(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether ``condition``, asked in a thread, came true within ``limit_s``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while loop.time() < deadline:
        if await asyncio.to_thread(condition):
            return True
        await asyncio.sleep(0.5)
    return False
