"""Server settings the toggle cannot work with, each refused at launch with reason and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from spec_toggle.compat.launch import (
    has_multimodal_positions,
    has_recurrent_state,
    runner_has_recurrent_state,
)
from spec_toggle.config import ConfigError

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")


class Refusal(NamedTuple):
    """A server argument whose value must be one of ``allowed``."""

    field: str
    flag: str
    allowed: tuple[Any, ...]
    reason: str


REFUSALS = (
    Refusal(
        "speculative_adaptive",
        "--speculative-adaptive",
        (False, None),
        "both would decide about speculation",
    ),
    Refusal(
        "enable_dp_attention",
        "--enable-dp-attention",
        (False, None),
        "ranks of attention data parallelism hold different batches and could disagree on the mode",
    ),
    Refusal(
        "attn_dp_size",
        "--attn-dp-size",
        (0, 1, None),
        "ranks of attention data parallelism hold different batches and could disagree on the mode",
    ),
    Refusal("pp_size", "--pp-size", (1, None), "pipeline stages rebuild the verify batch"),
    Refusal(
        "enable_multi_layer_eagle",
        "--enable-multi-layer-eagle",
        (False, None),
        "its draft worker is another one",
    ),
    Refusal(
        "enable_two_batch_overlap",
        "--enable-two-batch-overlap",
        (False, None),
        "it splits a batch by its speculative layout",
    ),
    Refusal(
        "disaggregation_mode",
        "--disaggregation-mode",
        ("null", None),
        "prefill and decode servers relay draft state",
    ),
    Refusal(
        "enable_lora",
        "--enable-lora",
        (False, None),
        "the graphs of both modes would share one set of adapter indices",
    ),
    Refusal("lora_paths", "--lora-paths", (None, []), "as with --enable-lora"),
    Refusal("enable_pdmux", "--enable-pdmux", (False, None), "it has attention state of its own"),
    Refusal("enable_hisparse", "--enable-hisparse", (False, None), "it was never tried"),
    Refusal("dcp_size", "--dcp-size", (1, None), "it was never tried"),
    Refusal("use_ray", "--use-ray", (False, None), "its actors do not inherit the configuration"),
    Refusal(
        "speculative_use_rejection_sampling",
        "--speculative-use-rejection-sampling",
        (False, None),
        "a plain step leaves no draft distribution for the next round",
    ),
)


def check_support(settings: Any) -> None:
    """Raise ConfigError for the first setting that does not go with the toggle.

    ``settings``: ``ServerArgs`` as given, or its resolved view.
    """
    algorithm = getattr(settings, "speculative_algorithm", None)
    if algorithm is None or algorithm.upper() not in ALGORITHMS:
        given = "no --speculative-algorithm" if algorithm is None else repr(algorithm)
        raise ConfigError(
            f"--enable-dynamic-spec needs an EAGLE draft to switch, but got {given}. "
            "Add --speculative-algorithm EAGLE3 and --speculative-draft-model-path."
        )
    for refusal in REFUSALS:
        value = getattr(settings, refusal.field, None)
        if value not in refusal.allowed:
            raise ConfigError(
                f"--enable-dynamic-spec does not work with {refusal.flag} {value}: "
                f"{refusal.reason}. Remove one of the two."
            )
    _check_draft(algorithm.upper(), getattr(settings, "speculative_draft_model_path", None))


def check_draft_sync(settings: Any, draft_sync: str) -> None:
    """Raise ConfigError where KV is copied out before a deferred draft sync has written it."""
    for field in ("enable_hierarchical_cache", "enable_lmcache"):
        if draft_sync != "eager" and getattr(settings, field, None):
            raise ConfigError(
                f"dynamic-spec draft sync {draft_sync!r} does not work with "
                f"--{field.replace('_', '-')}: it would copy the KV of a finished request before "
                "the draft's is written. Use --dynamic-spec-draft-sync eager."
            )


def check_model(model_config: Any, device: str) -> None:
    """Raise ConfigError for a target or device whose decode steps the toggle cannot run.

    ``model_config``: the host's ``ModelConfig`` of the target.
    """
    architecture = model_config.hf_config.architectures[0]
    if has_recurrent_state(model_config):
        raise _recurrent(architecture)
    if has_multimodal_positions(model_config):
        raise ConfigError(
            f"--enable-dynamic-spec does not work with {architecture}: multimodal positions of a "
            "plain step are not supported. Remove the flag."
        )
    if device not in ("cuda", "cpu"):
        raise ConfigError(
            f"--enable-dynamic-spec does not work with --device {device}: native decode graphs are "
            "captured on CUDA only. Remove the flag."
        )


def check_runner(runner: Any) -> None:
    """``check_model`` by what some releases know of a loaded target only."""
    if runner_has_recurrent_state(runner):
        raise _recurrent(runner.model_config.hf_config.architectures[0])


def _recurrent(architecture: str) -> ConfigError:
    return ConfigError(
        f"--enable-dynamic-spec does not work with {architecture}: its recurrent state is kept "
        "by verified rounds only. Remove the flag."
    )


def _check_draft(algorithm: str, path: str | None) -> None:
    if path is None:
        if algorithm == "EAGLE3":
            raise ConfigError(
                "--enable-dynamic-spec with EAGLE3 needs a draft model. "
                "Add --speculative-draft-model-path."
            )
        return  # other targets may hold their draft in the same checkpoint
    if path.startswith(("/", "./", "../", "~")) and not Path(path).expanduser().exists():
        raise ConfigError(
            f"--speculative-draft-model-path {path}: no such folder. Correct the path."
        )
