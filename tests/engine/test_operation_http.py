"""A running server as the person on call meets it: the endpoint, the commands, metrics and logs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from spec_toggle.cli import main
from spec_toggle.demo.server import Server, toggle_arguments
from spec_toggle.reference.tiny_pair import build_tiny_pair, held_out_prompts
from tests.engine.test_http import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

THRESHOLD, DWELL, STREAMS, LENGTH = 8, 4, 3, 120
USER, ADMIN = "user-key", "admin-key"
PROMPTS = held_out_prompts(STREAMS, 23)
LABELS = ("mode", "reason", "age", "le")
KEYS = ["--api-key", USER, "--admin-api-key", ADMIN]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pair = build_tiny_pair()
    started = Server("operated", pair.target, toggle_arguments(pair.draft, THRESHOLD, DWELL) + KEYS)
    try:
        started.wait_until_ready(600)
        yield started
    finally:
        started.stop()


def call(server: Server, body: Any = None, key: str | None = ADMIN) -> requests.Response:
    """GET the state, or POST ``body``."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = f"{server.url}/dynamic_spec"
    if body is None:
        return requests.get(url, headers=headers, timeout=60)
    return requests.post(url, json=body, headers=headers, timeout=60)


def state(server: Server, body: Any = None) -> dict[str, Any]:
    answer = call(server, body)
    assert answer.status_code == 200, answer.text
    (engine,) = answer.json()["engines"]
    return dict(engine)


def generate(server: Server, prompt: str, length: int = LENGTH) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    response = requests.post(
        f"{server.url}/generate",
        json={"text": prompt, "sampling_params": sampling},
        headers={"Authorization": f"Bearer {USER}"},
        timeout=300,
    )
    assert response.status_code == 200, response.text
    return dict(response.json())


def samples(server: Server) -> dict[str, float]:
    """Toggle series, e.g. ``switches_total{mode=plain,reason=load}``; labels of the rank left out.

    Fails if a series comes from more than one process or rank.
    """
    text = requests.get(f"{server.url}/metrics/", timeout=30).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("spec_toggle_"):
                own = {k: v for k, v in sample.labels.items() if k in LABELS}
                labels = ",".join(f"{k}={v}" for k, v in sorted(own.items()))
                name = sample.name.removeprefix("spec_toggle_") + (f"{{{labels}}}" if own else "")
                assert name not in found and sample.labels["tp_rank"] == "0"
                found[name] = sample.value
    return found


def test_the_endpoint_takes_the_admin_key_alone(server: Server) -> None:
    for body in (None, {"threshold": 1}):
        for key in (None, "wrong", USER):
            assert call(server, body, key).status_code == 401
    assert state(server)["config"]["threshold"] == THRESHOLD


def test_settings_change_at_once_and_wrong_ones_say_why(server: Server) -> None:
    changed = state(server, {"threshold": 5, "dwell": 3})
    assert changed["config"]["threshold"] == changed["boundary"] == 5
    for body, reason in (
        ({"threshold": -1}, "threshold -1 is out of range"),
        ({"hysteresis": 99}, "hysteresis 99 is larger than threshold 5"),
        ({"sync_tokens": 9}, "sync_tokens cannot change on a running server"),
        ({"policy": "best"}, "policy 'best' is unknown. Use one of: threshold, auto"),
        ({"margin": 0.1}, "margin 0.1 has no effect with policy 'threshold'"),
        ({"speed": 11}, "unknown setting 'speed'"),
        ({"force": "plain"}, "force needs a time"),
    ):
        answer = call(server, body)
        assert answer.status_code == 400 and reason in answer.json()["error"]["message"]
    assert state(server) == changed
    assert state(server, {"threshold": THRESHOLD, "dwell": DWELL})["boundary"] == THRESHOLD


def test_a_broken_body_is_refused(server: Server) -> None:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    answer = requests.post(f"{server.url}/dynamic_spec", "{", headers=headers, timeout=60)
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]["message"]


def test_a_force_acts_mid_run_ends_by_itself_and_leaves_tokens_equal(server: Server) -> None:
    expected = [generate(server, prompt) for prompt in PROMPTS]
    assert all(each["meta_info"]["dynamic_spec_plain_tokens"] == 0 for each in expected)
    before = samples(server)
    seconds = 4.0
    began = time.monotonic()
    forced = state(server, {"force": "plain", "seconds": seconds})["force"]
    assert forced["mode"] == "plain" and abs(forced["until"] - time.time() - seconds) < 2
    with ThreadPoolExecutor(STREAMS) as pool:
        outputs = list(pool.map(lambda prompt: generate(server, prompt), PROMPTS))
        wait_for(lambda: state(server)["force"] is None, "the force to end", limit_s=30)
        assert time.monotonic() - began >= seconds - 0.2
    assert [each["output_ids"] for each in outputs] == [each["output_ids"] for each in expected]
    wait_for(lambda: state(server)["mode"] == "spec", "speculation to return")

    details = [each["meta_info"] for each in outputs]
    plain = sum(detail["dynamic_spec_plain_tokens"] for detail in details)
    wait_for(lambda: samples(server)["speculating"] == 1, "the gauge")
    after = samples(server)
    grown = {name: after[name] - before[name] for name in before}
    assert plain == grown["tokens_total{mode=plain}"] > 0
    for detail in details:
        counted = detail["dynamic_spec_plain_tokens"]
        assert 0 < counted < detail["completion_tokens"]
        if "spec_verify_ct" in detail:  # the rest came from rounds, and one from the prefill
            drafted = detail["spec_verify_ct"] + detail["spec_num_correct_drafts"]
            assert 0 <= drafted - (detail["completion_tokens"] - 1 - counted) <= 3
            assert 1 <= detail["spec_accept_length"] <= 4
    assert grown["switches_total{mode=plain,reason=forced}"] == 1
    assert after["forced{mode=plain}"] == 0
    assert grown["mode_seconds_total{mode=plain}"] == pytest.approx(seconds, abs=2.5)


def test_a_second_force_outlives_the_release_of_the_first(server: Server) -> None:
    state(server, {"force": "plain", "seconds": 0.5})
    second = state(server, {"force": "plain", "seconds": 60})["force"]
    time.sleep(1.0)
    assert state(server)["force"] == second
    assert state(server, {"force": "none"})["force"] is None


def test_all_fed_series_are_exported_once(server: Server) -> None:
    generate(server, PROMPTS[0])  # the first rounds since the last return to SPEC
    wait_for(lambda: samples(server)["verifications_total{age=first_32}"] > 0, "young rounds")
    found = samples(server)
    for name in (
        "speculating",
        "boundary_requests",
        "forced{mode=spec}",
        "switches_total{mode=spec,reason=idle}",
        "mode_seconds_total{mode=spec}",
        "iterations_total{mode=plain}",
        "verifications_total{age=later}",
        "verified_tokens_total{age=first_32}",
        "accept_collapses_total",
        "draft_sync_pending_tokens",
        "draft_sync_flush_seconds_count",
    ):
        assert name in found
    young = "{age=first_32}"
    accept = found[f"verified_tokens_total{young}"] / found[f"verifications_total{young}"]
    assert 1 < accept <= 4
    assert not any(name.startswith(("probe", "estimated")) for name in found)


def test_decode_lines_name_the_mode_and_steering_is_logged(server: Server) -> None:
    log = server.log()
    for mode in ("SPEC", "PLAIN"):
        assert re.search(rf"Decode batch.*accept len: .*mode: {mode}, cpu graph: False", log)
    assert "steered by an operator: threshold 8 -> 5, dwell 4 -> 3" in log
    assert "steered by an operator: PLAIN forced" in log
    assert "Traceback" not in log


def test_the_commands_work_on_a_real_server(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    to_server = ["--url", server.url, "--api-key", ADMIN]
    load = threading.Thread(target=generate, args=(server, PROMPTS[0], 300))
    load.start()
    assert main(["set", "threshold=7", *to_server]) == 0
    assert main(["top", "--count", "3", "--interval", "0.3", *to_server]) == 0
    load.join()
    assert "boundary 7" in capsys.readouterr().out
    assert main(["force", "spec", "--seconds", "30", *to_server]) == 0
    assert main(["force", "none", *to_server]) == 0
    assert main(["status", "--json", *to_server]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index('{\n  "engines"') :])["engines"][0]["force"] is None
    with pytest.raises(SystemExit):
        main(["status", "--url", server.url])
    assert "--api-key" in capsys.readouterr().err
