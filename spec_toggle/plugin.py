"""The entry point that SGLang's plugin loader calls once in every process."""

from __future__ import annotations

import multiprocessing
import os
import sys

from spec_toggle import install
from spec_toggle.adapters import config_from_environment
from spec_toggle.args import exit_with
from spec_toggle.config import ENVIRONMENT, ConfigError
from spec_toggle.hooks import FLAG_HOOKS, TOGGLE_HOOKS
from spec_toggle.reference.launch import is_requested


def activate() -> None:
    """Offer the flags; in a scheduler process of a server with the toggle, install its hooks.

    The loader logs exceptions and goes on without the plugin. Where the toggle was asked for, the
    launch must stop instead, so that case exits.
    """
    if is_requested():
        _register_reference_engine()
    if multiprocessing.parent_process() is None:
        # Only a launch in this process may set it, for the processes that it starts.
        os.environ.pop(ENVIRONMENT, None)
    try:
        install.install(FLAG_HOOKS)
        install.accept_engine_keywords()
    except ConfigError as error:
        if "--enable-dynamic-spec" in sys.argv:
            exit_with(error)
        return
    is_scheduler = "sglang.srt.managers.scheduler" in sys.modules
    if config_from_environment() is not None and is_scheduler:
        try:
            # The launch has checked the contract: its processes need not read the source again.
            install.install(TOGGLE_HOOKS)
        except ConfigError as error:
            exit_with(error)


def _register_reference_engine() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from spec_toggle.reference.amx import REFERENCE_HOOKS

    for hook in REFERENCE_HOOKS:
        HookRegistry.register(hook.target, hook.handler, HookType.AROUND)
