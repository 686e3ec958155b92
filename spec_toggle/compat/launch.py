"""Server arguments and facts of the model, as each release resolves them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from spec_toggle.contract import WORKER_BATCH
from spec_toggle.source import installed_source


def older_release() -> str | None:
    """The installed release, where its scheduler makes a batch for the worker of each iteration."""
    return version("sglang") if WORKER_BATCH.holds(installed_source()) else None


def resolved_settings(server_args: Any) -> Any:
    """The settings that hold. Releases before 0.5.20 resolve the record in its constructor."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return server_args
    return resolving_view(server_args)


def declare(server_args: Any, **settings: Any) -> None:
    """Decide settings that were left to be resolved."""
    try:
        from sglang.srt.arg_groups.overrides import declare_resolution
    except ImportError:
        for name, value in settings.items():
            setattr(server_args, name, value)
    else:
        declare_resolution(server_args, "spec_toggle", **settings)


def target_config(server_args: Any) -> Any:
    """The host's ``ModelConfig`` of the target."""
    try:
        from sglang.srt.arg_groups.overrides import model_config_of
    except ImportError:
        return server_args.get_model_config()
    return model_config_of(server_args)


def has_recurrent_state(model_config: Any) -> bool:
    """As far as a release can tell at launch; ``runner_has_recurrent_state`` can on the others."""
    try:
        from sglang.srt.configs.hybrid_arch import mambaish_config
    except ImportError:
        return False
    return mambaish_config(model_config) is not None


def runner_has_recurrent_state(runner: Any) -> bool:
    """Releases before 0.5.17 know it of a target's runner only."""
    return getattr(runner, "mambaish_config", None) is not None


def has_multimodal_positions(model_config: Any) -> bool:
    if hasattr(model_config, "model_is_mrope"):
        return bool(model_config.model_is_mrope)
    # As the runner of a release before 0.5.17 tells it.
    text = model_config.hf_text_config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    return "mrope_section" in (rope or {})


def are_decode_graphs_disabled(server_args: Any) -> bool:
    try:
        from sglang.srt.model_executor.cuda_graph_config import (
            Backend,
            Phase,
            check_cuda_graph_backend,
        )
    except ImportError:
        return bool(server_args.disable_cuda_graph)
    return bool(check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED))
