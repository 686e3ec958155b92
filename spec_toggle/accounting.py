"""Plain steps are not rounds: keep SGLang's speculative statistics about rounds only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spec_toggle.policy import Mode

# Attribute that marks a GenerationBatchResult which holds no verified round.
PLAIN_RESULT = "is_plain_step"


def resolve_tokens(
    original: Callable[..., list[list[int]]], processor: Any, result: Any, batch: Any
) -> list[list[int]]:
    """Take back the verify count that upstream gives each request for a plain step.

    The result is processed as a round of stride 1, because that path commits KV lengths and
    advances grammars in the order that speculation needs.
    """
    is_plain = getattr(result, PLAIN_RESULT, False)
    live = [not (req.is_retracted or req.finished()) for req in batch.reqs]
    tokens = original(processor, result, batch)
    if is_plain:
        for req, is_live in zip(batch.reqs, live, strict=True):
            if is_live:
                req.spec_verify_ct -= 1
                req.spec_correct_drafts_histogram[0] -= 1
    toggle = getattr(processor.model_worker, "_dynamic_spec", None)
    if toggle is not None:
        mode = Mode.PLAIN if is_plain else Mode.SPEC
        toggle.controller.count_tokens(mode, _count_output(batch.reqs, live, tokens))
        observations = toggle.controller.observations
        if observations is not None:
            accepted = sum(len(run) for run, is_live in zip(tokens, live, strict=True) if is_live)
            observations.result(mode, len(live), sum(live), accepted, batch.forward_iter)
    # ``update_spec_metrics`` follows at once, and does not see the result.
    processor.metrics_reporter._last_result_is_plain = is_plain
    return tokens


def _count_output(reqs: list[Any], live: list[bool], tokens: list[list[int]]) -> int:
    """Tokens that clients get: a round's run may pass a request's last token."""
    count = 0
    for req, is_live, run in zip(reqs, live, tokens, strict=True):
        if is_live:
            left = req.sampling_params.max_new_tokens - len(req.output_ids)
            count += max(0, min(len(run), left))
    return count


def update_spec_metrics(
    original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any
) -> None:
    if not getattr(reporter, "_last_result_is_plain", False):
        original(reporter, *args, **kwargs)


def report_decode_stats(
    original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any
) -> None:
    """An interval without a round would divide by zero: report an accept length of 0 for it."""
    if reporter.spec_num_forward_ct:
        original(reporter, *args, **kwargs)
        return
    total = reporter.spec_total_num_forward_ct
    reporter.spec_num_forward_ct = 1
    try:
        original(reporter, *args, **kwargs)
    finally:
        reporter.spec_num_forward_ct = 0
        reporter.spec_total_num_forward_ct = total


def request_metrics(
    result: None, manager: Any, meta_info: dict[str, Any], recv_obj: Any, i: int
) -> None:
    """Upstream divides all tokens of a request by its rounds; plain tokens came from none."""
    del result, manager
    if "spec_accept_length" in meta_info:
        rounds = recv_obj.spec_verify_ct[i]
        meta_info["spec_accept_length"] = 1 + recv_obj.spec_num_correct_drafts[i] / rounds
