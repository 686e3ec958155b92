"""Plain steps are not rounds: keep SGLang's speculative statistics about rounds only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import compress
from typing import Any, NamedTuple

from spec_toggle.compat import replaced
from spec_toggle.policy import Mode

# Attribute that marks a GenerationBatchResult which holds no verified round.
PLAIN_RESULT = "is_plain_step"
# Attribute of a round's result: how many rounds after a return to SPEC it ran.
ROUND_AGE = "rounds_since_resume"
# An int per request that SGLang carries to the process that answers clients, and that no EAGLE
# round fills: ours counts the request's plain tokens in it. Releases before 0.5.18 have none.
CARRIER = "spec_num_block_accept_tokens"


def reporter_of(owner: Any) -> Any:
    """What holds the figures of a logging interval; before 0.5.15 the scheduler, a mixin's work."""
    return getattr(owner, "metrics_reporter", owner)


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
        _take_back(list(compress(batch.reqs, live)))
        counts = Counts(*(3 * [sum(live)]))
    else:
        verified = sum(map(len, compress(tokens, live)))
        counts = Counts(sum(live), _count_output(batch.reqs, live, tokens), verified)
    _count(processor, batch, result, counts)
    return tokens


def _take_back(reqs: list[Any]) -> None:
    """Undo the verify of a plain step; each request has got one token of it."""
    carries = bool(reqs) and hasattr(reqs[0], CARRIER)
    for req in reqs:
        req.spec_verify_ct -= 1
        req.spec_correct_drafts_histogram[0] -= 1
        if carries:
            setattr(req, CARRIER, getattr(req, CARRIER) + 1)


class Counts(NamedTuple):
    """Of one result: requests that still ran, tokens for clients, tokens before any was cut off."""

    requests: int
    tokens: int
    verified: int


def _count(processor: Any, batch: Any, result: Any, counts: Counts) -> None:
    is_plain = getattr(result, PLAIN_RESULT, False)
    toggle = getattr(processor.model_worker, "_dynamic_spec", None)
    if toggle is not None:
        mode = Mode.PLAIN if is_plain else Mode.SPEC
        controller = toggle.controller
        controller.count_tokens(mode, counts.tokens)
        if not is_plain:
            controller.count_round(
                getattr(result, ROUND_AGE, None), counts.requests, counts.verified
            )
        if controller.observations is not None:
            controller.observations.result(
                mode, len(batch.reqs), counts.requests, counts.verified, batch.forward_iter
            )
    # ``update_spec_metrics`` follows at once, and does not see the result.
    reporter_of(processor)._last_result_is_plain = is_plain


def process_decode(original: Callable[..., None], scheduler: Any, batch: Any, result: Any) -> None:
    """``process_batch_result_decode`` of the worker without overlap of 0.5.12.

    Its rounds have given their tokens to the requests already; a plain step is an ordinary result.
    """
    toggle = getattr(scheduler.model_worker, "_dynamic_spec", None)
    if toggle is None or not toggle.runs_ordinary_steps:
        original(scheduler, batch, result)
        return
    count = len(batch.reqs)
    if not getattr(result, PLAIN_RESULT, False):
        verified = count + result.num_correct_drafts
        _count(scheduler, batch, result, Counts(count, verified, verified))
        original(scheduler, batch, result)
        return
    _count(scheduler, batch, result, Counts(count, count, count))
    toggle.process_plain_result(functools.partial(original, scheduler), batch, result)


def _count_output(reqs: list[Any], live: list[bool], tokens: list[list[int]]) -> int:
    """Tokens that clients get: a round's run may pass a request's last token."""
    return sum(
        max(0, min(len(run), req.sampling_params.max_new_tokens - len(req.output_ids)))
        for req, run in compress(zip(reqs, tokens, strict=True), live)
    )


def update_spec_metrics(
    original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any
) -> None:
    if not getattr(reporter, "_last_result_is_plain", False):
        original(reporter, *args, **kwargs)


def report_decode_stats(
    original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any
) -> None:
    """Name the mode in the decode line, before the word about graphs.

    An interval without a round would divide by zero: report an accept length of 0 for it.
    """
    mode = Mode.PLAIN if getattr(reporter, "_last_result_is_plain", False) else Mode.SPEC
    label = f"mode: {mode.name}, {reporter._graph_backend_label}"
    with replaced(reporter, _graph_backend_label=label):
        if reporter.spec_num_forward_ct:
            original(reporter, *args, **kwargs)
            return
        # The totals are changed by the stand-in too.
        values = {"spec_total_num_forward_ct": reporter.spec_total_num_forward_ct}
        if not hasattr(reporter, "spec_num_correct_drafts"):
            # Accept rate is tokens less rounds here: 1 and 1, reported as an accept length of 1.
            total = reporter.spec_total_num_accept_tokens
            values |= {"spec_num_accept_tokens": 1, "spec_total_num_accept_tokens": total}
        with replaced(reporter, spec_num_forward_ct=1, **values):
            original(reporter, *args, **kwargs)


def request_metrics(
    result: None, manager: Any, meta_info: dict[str, Any], recv_obj: Any, i: int
) -> None:
    """Upstream divides all tokens of a request by its rounds; plain tokens came from none.

    Beside upstream's figures: ``dynamic_spec_plain_tokens``, how many tokens came from plain steps.
    """
    del result, manager
    plain_tokens = getattr(recv_obj, CARRIER, None)
    if plain_tokens:
        meta_info["dynamic_spec_plain_tokens"] = plain_tokens[i]
    if "spec_accept_length" in meta_info:
        rounds = recv_obj.spec_verify_ct[i]
        meta_info["spec_accept_length"] = 1 + recv_obj.spec_num_correct_drafts[i] / rounds
