"""Prometheus series of the toggle, served beside SGLang's own under ``/metrics``.

Import it only after SGLang has set up Prometheus's multiprocess mode: the client library looks for
that once, when it is imported.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from spec_toggle.policy import Mode

PREFIX = "spec_toggle"
# Rounds after a return to SPEC that count as young: what a cold draft costs shows there.
YOUNG_ROUNDS = 32
YOUNG, OLD = f"first_{YOUNG_ROUNDS}", "later"
CAUSES = {
    Mode.PLAIN: ("load", "forced", "probe"),
    Mode.SPEC: ("load", "idle", "forced", "probe"),
}
FLUSH_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


def age_of(rounds: int | None) -> str:
    """The ``age`` label of the ``rounds``-th round since the last return to SPEC."""
    return YOUNG if rounds is not None and rounds <= YOUNG_ROUNDS else OLD


class ToggleMetrics:
    """One scheduler's series, labelled like SGLang's (model name, ranks).

    A series has no sample before its first value, so what nothing feeds is not exported.
    """

    def __init__(self, labels: dict[str, str], registry: CollectorRegistry = REGISTRY) -> None:
        self._labels = labels
        self._registry = registry
        self._define_decisions()
        self._define_acceptance()
        self._define_draft_sync()
        self._start_at_zero()

    def _define_decisions(self) -> None:
        self._speculating = self._gauge(
            "speculating", "1 while decode iterations speculate, 0 while they are plain."
        )
        self._forced = self._gauge("forced", "1 while an operator forces this mode.", "mode")
        self._boundary = self._gauge(
            "boundary_requests", "Decode batch size above which the policy decodes plainly."
        )
        self._gain = self._gauge(
            "estimated_gain_ratio", "Estimated speed of SPEC over that of PLAIN at this load."
        )
        self._switches = self._counter(
            "switches", "Changes of mode, by the mode switched to and the cause.", "mode", "reason"
        )
        self._seconds = self._counter("mode_seconds", "Time in each mode, idle time too.", "mode")
        self._iterations = self._counter(
            "iterations",
            "Decode iterations: plain steps (plain) and speculative rounds (spec).",
            "mode",
        )
        self._tokens = self._counter("tokens", "Output tokens of decode iterations.", "mode")
        self._probes = self._counter("probe_rounds", "Rounds run to measure, not to gain.")

    def _define_acceptance(self) -> None:
        self._verifications = self._counter(
            "verifications", "Verified drafts: one per request and round, by age of SPEC.", "age"
        )
        self._verified_tokens = self._counter(
            "verified_tokens",
            "Tokens of rounds, the bonus token included. Divided by verifications: accept length.",
            "age",
        )
        self._collapses = self._counter(
            "accept_collapses", "Times that 200 rounds in a row accepted no draft token."
        )

    def _define_draft_sync(self) -> None:
        self._pending = self._gauge(
            "draft_sync_pending_tokens", "Tokens whose draft KV cache is still to be written."
        )
        self._flush = Histogram(
            f"{PREFIX}_draft_sync_flush_seconds",
            "Host time to launch one write of pending draft KV.",
            list(self._labels),
            buckets=FLUSH_BUCKETS_S,
            registry=self._registry,
        )

    def _start_at_zero(self) -> None:
        """Samples for all that has a source in any server: a rate needs a zero to rise from.

        What every iteration counts is looked up here, once: a look-up costs more than the count.
        """
        self._speculating.labels(**self._labels).set(1)
        self._collapses.labels(**self._labels)
        self._pending_now = self._pending.labels(**self._labels)
        for mode, causes in CAUSES.items():
            self._forced.labels(**self._labels, mode=mode.value).set(0)
            for cause in causes:
                self._switches.labels(**self._labels, mode=mode.value, reason=cause)
            self._seconds.labels(**self._labels, mode=mode.value)
        self._iterations_of = self._children(self._iterations, "mode", [m.value for m in Mode])
        self._tokens_of = self._children(self._tokens, "mode", [m.value for m in Mode])
        self._verifications_of = self._children(self._verifications, "age", [YOUNG, OLD])
        self._verified_tokens_of = self._children(self._verified_tokens, "age", [YOUNG, OLD])

    def _children(self, counter: Counter, label: str, values: list[str]) -> dict[str, Counter]:
        return {value: counter.labels(**self._labels, **{label: value}) for value in values}

    def switch(self, mode: Mode, cause: str) -> None:
        self._switches.labels(**self._labels, mode=mode.value, reason=cause).inc()
        self._speculating.labels(**self._labels).set(float(mode is Mode.SPEC))

    def force(self, forced: Mode | None) -> None:
        for mode in Mode:
            self._forced.labels(**self._labels, mode=mode.value).set(float(mode is forced))

    def seconds(self, mode: Mode, elapsed_s: float) -> None:
        self._seconds.labels(**self._labels, mode=mode.value).inc(elapsed_s)

    def iteration(self, mode: Mode) -> None:
        self._iterations_of[mode.value].inc()

    def tokens(self, mode: Mode, count: int) -> None:
        self._tokens_of[mode.value].inc(count)

    def round(self, age: int | None, requests: int, tokens: int) -> None:
        """``age``: 1 for the first round after a return to SPEC; None if it never left."""
        label = age_of(age)
        self._verifications_of[label].inc(requests)
        self._verified_tokens_of[label].inc(tokens)

    def collapse(self) -> None:
        self._collapses.labels(**self._labels).inc()

    def boundary(self, requests: float) -> None:
        self._boundary.labels(**self._labels).set(requests)

    def estimated_gain(self, ratio: float) -> None:
        """``ratio``: estimated tokens/s of SPEC over those of PLAIN; above 1, SPEC is faster."""
        self._gain.labels(**self._labels).set(ratio)

    def probe_round(self) -> None:
        self._probes.labels(**self._labels).inc()

    def draft_sync_backlog(self, tokens: int) -> None:
        self._pending_now.set(tokens)

    def draft_sync_flush(self, elapsed_s: float) -> None:
        self._flush.labels(**self._labels).observe(elapsed_s)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(
            f"{PREFIX}_{name}",
            help_text,
            [*self._labels, *labels],
            multiprocess_mode="mostrecent",
            registry=self._registry,
        )

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        names: list[Any] = [*self._labels, *labels]
        return Counter(f"{PREFIX}_{name}", help_text, names, registry=self._registry)
