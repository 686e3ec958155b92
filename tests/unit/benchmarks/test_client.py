"""The arithmetic of a level on synthetic traces, and the prompts' seeds."""

import dataclasses
import json

import pytest

from benchmarks.client import (
    Job,
    Trace,
    make_bodies,
    make_warmup,
    paces_of,
    percentile,
    summarise,
)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 2.5), (99, 3.97), (100, 4.0)], ids=str
)
def test_percentile_interpolates(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected)


def test_percentile_of_nothing_and_of_one() -> None:
    assert percentile([], 50) is None
    assert percentile([7.0], 99) == 7.0


def test_level_of_two_plain_requests() -> None:
    traces = [Trace(10.0, 10.2, 11.2, 1, 101), Trace(10.5, 10.9, 12.0, 1, 101)]
    level = summarise(traces)
    assert level["output_tok_s"] == pytest.approx(202 / 2.0)
    assert level["tpot_ms_p50"] == pytest.approx(10.5)
    assert level["tpot_ms_p99"] == pytest.approx(10.99)
    assert level["ttft_ms_p50"] == pytest.approx(300)
    assert level["ttft_ms_p99"] == pytest.approx(398)  # of 200 and 400
    assert (level["requests"], level["output_tokens"], level["wall_s"]) == (2, 202, 2.0)
    assert level["accept_len"] is None
    assert level["round_share"] == 0


def test_first_event_with_several_tokens_shortens_the_interval() -> None:
    assert Trace(0.0, 1.0, 2.0, first_tokens=5, tokens=15).tpot_s == pytest.approx(0.1)
    assert Trace(0.0, 1.0, 1.0, first_tokens=3, tokens=3).tpot_s is None


def test_the_pace_between_events_is_per_token_and_has_no_wait_for_a_prefill_in_its_median() -> None:
    assert paces_of([(1.0, 1), (2.0, 5), (3.5, 5), (4.0, 13)]) == pytest.approx((0.25, 0.25))
    assert paces_of([(1.0, 3)]) == ()
    paces = paces_of([(0.0, 1), (8.0, 33), (8.64, 65), (9.28, 97)])  # others' prompts came first
    level = summarise([Trace(-0.5, 0.0, 9.28, 1, 97, paces=paces)])
    assert level["pace_ms_p50"] == pytest.approx(20)
    assert summarise([Trace(0.0, 1.0, 1.0, 3, 3)])["pace_ms_p50"] is None


def test_accept_length_counts_rounds_alone() -> None:
    # 61 tokens: one from the prefill, 10 rounds made 26, plain steps the other 34.
    level = summarise([Trace(0.0, 0.1, 1.0, 1, 61, rounds=10, correct_drafts=16)])
    assert level["accept_len"] == pytest.approx(2.6)
    assert level["round_share"] == pytest.approx(26 / 60, abs=1e-3)


def test_prompts_follow_their_seed() -> None:
    job = Job("http://x", 1, 2, input_len=5, output_len=7, vocab_size=50, seed="a")
    first, again, other = (make_bodies(job, seed, [7, 7]) for seed in ("a", "a", "b"))
    assert first == again != other
    body = json.loads(first[0])
    assert len(body["input_ids"]) == 5 and max(body["input_ids"]) < 50
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 7, "ignore_eos": True}
    assert first[0] != first[1]


def test_warm_up_ends_at_different_times_and_never_after_the_answers() -> None:
    job = Job("http://x", 4, 2, input_len=5, output_len=24, vocab_size=50, seed="a")
    params = [json.loads(body)["sampling_params"] for body in make_warmup(job)]
    assert [found["max_new_tokens"] for found in params] == 8 * [24, 6, 18, 12]
    assert len(make_warmup(dataclasses.replace(job, concurrency=64))) == 3 * 64


def test_given_prompts_take_turns_and_may_end() -> None:
    job = Job("http://x", 1, 2, 5, 7, vocab_size=50, seed="a", prompts=[[1], [2, 2], [3]])
    bodies = [json.loads(body) for body in make_bodies(job, "a", [7] * 6)]
    assert sorted(body["input_ids"] for body in bodies[:3]) == [[1], [2, 2], [3]]
    assert sorted(body["input_ids"] for body in bodies[3:]) == [[1], [2, 2], [3]]
    assert not any(body["sampling_params"]["ignore_eos"] for body in bodies)
