"""What the server's ``/metrics`` say at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Snapshot:
    """Series of the toggle and of SGLang; the counters are totals since the server's start."""

    is_speculating: bool
    running: int
    queued: int
    accept_length: float
    switches: int
    plain_steps: int
    rounds: int
    plain_tokens: int
    spec_tokens: int


def parse(text: str) -> Snapshot:
    """``text``: the body of ``/metrics``. Raises KeyError if it lacks the toggle's series."""
    values: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("mode", ""))
            values[key] = values.get(key, 0.0) + sample.value

    def count(name: str, mode: str) -> int:
        return int(values[f"spec_toggle_{name}_total", mode])

    return Snapshot(
        is_speculating=values["spec_toggle_speculating", ""] > 0,
        running=int(values.get(("sglang:num_running_reqs", ""), 0)),
        queued=int(values.get(("sglang:num_queue_reqs", ""), 0)),
        accept_length=values.get(("sglang:spec_accept_length", ""), 0.0),
        switches=count("switches", "plain") + count("switches", "spec"),
        plain_steps=count("iterations", "plain"),
        rounds=count("iterations", "spec"),
        plain_tokens=count("tokens", "plain"),
        spec_tokens=count("tokens", "spec"),
    )
