"""Prometheus series of the toggle, served beside SGLang's own under ``/metrics``."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from spec_toggle.policy import Mode

PREFIX = "spec_toggle"


class ToggleMetrics:
    """One process's series, labelled like SGLang's (model name, ranks)."""

    def __init__(self, labels: dict[str, str]) -> None:
        names = [*labels, "mode"]
        self._labels = labels
        self._speculating = Gauge(
            f"{PREFIX}_speculating",
            "1 while decode iterations speculate, 0 while they are plain.",
            list(labels),
            multiprocess_mode="mostrecent",
        )
        self._switches = Counter(
            f"{PREFIX}_switches", "Changes of mode, by the mode switched to.", names
        )
        self._iterations = Counter(
            f"{PREFIX}_iterations",
            "Decode iterations: plain steps (plain) and speculative rounds (spec).",
            names,
        )
        self._tokens = Counter(f"{PREFIX}_tokens", "Output tokens of decode iterations.", names)
        self._speculating.labels(**labels).set(1)
        for mode in Mode:
            for counter in (self._switches, self._iterations, self._tokens):
                counter.labels(**labels, mode=mode.value)

    def switch(self, mode: Mode) -> None:
        self._switches.labels(**self._labels, mode=mode.value).inc()
        self._speculating.labels(**self._labels).set(float(mode is Mode.SPEC))

    def iteration(self, mode: Mode) -> None:
        self._iterations.labels(**self._labels, mode=mode.value).inc()

    def tokens(self, mode: Mode, count: int) -> None:
        self._tokens.labels(**self._labels, mode=mode.value).inc(count)
