"""The toggle over real HTTP: one server with it, one without speculation as the reference."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from spec_toggle.demo.server import Server, server_command, server_environment, toggle_arguments
from spec_toggle.reference.tiny_pair import TinyPair, build_tiny_pair, held_out_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

THRESHOLD, DWELL, STREAMS, LENGTH = 2, 4, 5, 40
STEPS, RUNNING = ("spec_toggle_iterations_total", "plain"), ("sglang:num_running_reqs", "")
PROMPTS = held_out_prompts(STREAMS, 23)
# The last request outlives the others by more than the dwell: SPEC returns before it ends.
LENGTHS = [*[LENGTH] * (STREAMS - 1), 2 * LENGTH]


class Servers(NamedTuple):
    toggle: Server
    reference: Server


@pytest.fixture(scope="module")
def pair() -> TinyPair:
    return build_tiny_pair()


@pytest.fixture(scope="module")
def servers(pair: TinyPair) -> Iterator[Servers]:
    started: list[Server] = []
    try:
        arguments = toggle_arguments(pair.draft, THRESHOLD, DWELL)
        started.append(Server("toggle", pair.target, arguments))
        started.append(Server("reference", pair.target))
        for server in started:
            server.wait_until_ready(600)
        yield Servers(*started)
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="module")
def expected(servers: Servers) -> list[list[int]]:
    """Greedy tokens of each prompt alone, without speculation."""
    jobs = zip(PROMPTS, LENGTHS, strict=True)
    return [generate(servers.reference, *job)["output_ids"] for job in jobs]


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.2)


def body(prompt: str, length: int, **sampling: Any) -> dict[str, Any]:
    defaults = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    return {"text": prompt, "sampling_params": {**defaults, **sampling}}


def generate(server: Server, prompt: str, length: int, **sampling: Any) -> Any:
    request = body(prompt, length, **sampling)
    response = requests.post(f"{server.url}/generate", json=request, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


def post(server: Server, path: str, payload: dict[str, Any] | None = None) -> None:
    response = requests.post(f"{server.url}/{path}", json=payload, timeout=60)
    assert response.status_code == 200, f"{path}: {response.text}"


def generate_all(server: Server, pool: ThreadPoolExecutor, lengths: Sequence[int]) -> list[Any]:
    jobs = zip(PROMPTS, lengths, strict=True)
    return [pool.submit(generate, server, prompt, length) for prompt, length in jobs]


def tokens(futures: Sequence[Any]) -> list[list[int]]:
    return [future.result()["output_ids"] for future in futures]


def metrics(server: Server) -> dict[tuple[str, str], float]:
    """Every sample by name and ``mode`` label, summed over other labels."""
    text = requests.get(f"{server.url}/metrics/", timeout=30).text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("mode", ""))
            found[key] = found.get(key, 0.0) + sample.value
    return found


def is_plain(server: Server) -> bool:
    return metrics(server)["spec_toggle_speculating", ""] == 0


def check_idle_and_right(server: Server, expected: list[list[int]]) -> None:
    """Nothing runs; the cache flushes, which it refuses while requests hold it; output is right."""
    wait_for(lambda: metrics(server)[RUNNING] == 0, "no running request")
    post(server, "flush_cache")
    assert generate(server, PROMPTS[0], LENGTH)["output_ids"] == expected[0]


def test_load_switches_to_plain_and_back_with_equal_tokens(
    servers: Servers, expected: list[list[int]]
) -> None:
    server = servers.toggle
    before, log_before = metrics(server), len(server.log())
    with ThreadPoolExecutor(STREAMS) as pool:
        outputs = generate_all(server, pool, LENGTHS)
    assert tokens(outputs) == expected
    # Three drafts and a bonus token at most: plain tokens do not count as one round's.
    details = [output.result()["meta_info"] for output in outputs]
    assert all(1 <= detail.get("spec_accept_length", 1) <= 4 for detail in details)
    after = metrics(server)
    grown = {key: after[key] - before[key] for key in before}

    assert after["spec_toggle_speculating", ""] == 1
    plain_switches = grown["spec_toggle_switches_total", "plain"]
    assert plain_switches == grown["spec_toggle_switches_total", "spec"] >= 1
    plain_tokens = grown["spec_toggle_tokens_total", "plain"]
    assert grown[STEPS] < plain_tokens <= STREAMS * grown[STEPS]  # a token per request and step
    assert grown["spec_toggle_iterations_total", "spec"] >= 1
    # A request's first token comes from its prefill.
    decoded = plain_tokens + grown["spec_toggle_tokens_total", "spec"]
    assert decoded == sum(LENGTHS) - STREAMS

    lines = [ln for ln in server.log()[log_before:].splitlines() if "Dynamic speculation:" in ln]
    assert len(lines) == 2 * plain_switches
    for left, back in zip(lines[::2], lines[1::2], strict=True):
        assert re.search(r"SPEC -> PLAIN \(batch size (\d+) > threshold 2; batch size \1,", left)
        assert re.search(r"PLAIN -> SPEC \(.+; batch size \d+, queue \d+\)", back)
    assert "batch size 1 <= 2 for 4 iterations" in lines[-1]


def test_effective_configuration_is_logged_once(servers: Servers) -> None:
    (line,) = [ln for ln in servers.toggle.log().splitlines() if "speculation is on" in ln]
    config = json.loads(line[line.index("{") : line.index("}") + 1])
    assert (config["threshold"], config["dwell"]) == (THRESHOLD, DWELL)
    assert "Dynamic speculation" not in servers.reference.log()
    assert not any(name.startswith("spec_toggle") for name, _ in metrics(servers.reference))


def test_streamed_chunks_add_up_across_switches(
    servers: Servers, expected: list[list[int]]
) -> None:
    url = f"{servers.toggle.url}/generate"

    def stream(prompt: str, length: int) -> list[int]:
        """Concatenates what each chunk, which holds all output so far, adds."""
        joined: list[int] = []
        request = {**body(prompt, length), "stream": True}
        with requests.post(url, json=request, stream=True, timeout=300) as response:
            for line in response.iter_lines():
                chunk = line.decode().removeprefix("data: ")
                if chunk and chunk != "[DONE]":
                    so_far = json.loads(chunk)["output_ids"]
                    assert so_far[: len(joined)] == joined
                    joined += so_far[len(joined) :]
        return joined

    before = metrics(servers.toggle)[STEPS]
    with ThreadPoolExecutor(STREAMS) as pool:
        assert list(pool.map(stream, PROMPTS, LENGTHS)) == expected
    assert metrics(servers.toggle)[STEPS] > before


def test_clients_that_disconnect_leave_nothing_running(
    servers: Servers, expected: list[list[int]]
) -> None:
    server = servers.toggle
    url = f"{server.url}/generate"
    bodies = [{**body(prompt, 1500), "stream": True} for prompt in PROMPTS]
    streams = [requests.post(url, json=each, stream=True, timeout=300) for each in bodies]
    wait_for(lambda: is_plain(server) and metrics(server)[RUNNING] > THRESHOLD, "a plain batch")
    for stream in streams:
        stream.close()
    check_idle_and_right(server, expected)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_pause_and_continue(servers: Servers, expected: list[list[int]], mode: str) -> None:
    server = servers.toggle
    with ThreadPoolExecutor(STREAMS) as pool:
        futures = generate_all(server, pool, LENGTHS)
        wait_for(lambda: is_plain(server), "a plain batch")
        post(server, "pause_generation", {"mode": mode})
        time.sleep(0.5)
        paused = metrics(server)[STEPS]
        time.sleep(0.5)
        assert metrics(server)[STEPS] == paused
        assert not all(future.done() for future in futures)
        post(server, "continue_generation", {})
        assert tokens(futures) == expected
    retractions = sum(future.result()["meta_info"]["num_retractions"] for future in futures)
    assert (retractions > 0) == (mode == "retract")
    check_idle_and_right(server, expected)


def test_abort_all(servers: Servers, expected: list[list[int]]) -> None:
    server = servers.toggle
    with ThreadPoolExecutor(STREAMS) as pool:
        futures = generate_all(server, pool, [1500] * STREAMS)
        wait_for(lambda: is_plain(server), "a plain batch")
        post(server, "abort_request", {"abort_all": True})
        reasons = [future.result()["meta_info"]["finish_reason"]["type"] for future in futures]
    assert reasons == ["abort"] * STREAMS
    check_idle_and_right(server, expected)


def test_json_schema_in_both_modes(servers: Servers) -> None:
    choice = {"name": {"enum": ["Ann", "Ben"]}, "color": {"enum": ["red", "blue"]}}
    schema = {"type": "object", "properties": choice, "required": [*choice]}

    given = {"json_schema": json.dumps(schema), "ignore_eos": False}

    def constrained(server: Server, prompt: str) -> str:
        return str(generate(server, prompt, 100, **given)["text"])

    with ThreadPoolExecutor(STREAMS) as pool:
        crowd = list(pool.map(lambda prompt: constrained(servers.toggle, prompt), PROMPTS))
    alone = constrained(servers.toggle, PROMPTS[0])
    assert crowd == [constrained(servers.reference, prompt) for prompt in PROMPTS]
    assert alone == crowd[0]
    for text in crowd:
        assert set(json.loads(text)) == {"name", "color"}


def test_launch_without_an_algorithm_stops_with_one_line(pair: TinyPair) -> None:
    ended = run(server_command(pair.target, ["--enable-dynamic-spec"]))
    assert ended.returncode == 2
    (error,) = [ln for ln in ended.stderr.splitlines() if ln.startswith("spec-toggle: error:")]
    assert "--speculative-algorithm" in error
    assert "Traceback" not in ended.stderr


def test_launch_server_help_lists_the_flags(pair: TinyPair) -> None:
    launcher = server_command(pair.target, [])[:3]
    shown = run([*launcher, launcher[0], "-m", "sglang.launch_server", "--help"]).stdout
    assert "--enable-dynamic-spec" in shown and "--dynamic-spec-dwell" in shown


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    options: Any = {"capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(command, env=server_environment(), check=False, **options)
