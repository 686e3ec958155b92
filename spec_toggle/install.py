"""Checking the hook table against the installed SGLang, and installing it."""

from __future__ import annotations

import functools
import importlib
import inspect
import multiprocessing
import pkgutil
import sys
from collections.abc import Iterable

from spec_toggle import args
from spec_toggle.config import ConfigError
from spec_toggle.hooks import HTTP_HOOKS, TOGGLE_HOOKS, Hook

# Targets that carry our handler in this process.
_installed: set[str] = set()


def find_problems(hooks: Iterable[Hook]) -> list[str]:
    """What keeps ``hooks`` from fitting the installed SGLang: targets or parameters missing."""
    problems = []
    for hook in hooks:
        try:
            target = pkgutil.resolve_name(hook.target)
        except (ImportError, AttributeError) as error:
            problems.append(f"{hook.target} is missing ({error})")
            continue
        known = inspect.signature(target).parameters
        problems += [
            f"{hook.target} has no parameter {name!r}"
            for name in hook.parameters
            if name not in known
        ]
    return problems


def check_contract(hooks: Iterable[Hook] = TOGGLE_HOOKS) -> None:
    """Raise ConfigError unless every one of ``hooks`` fits the installed SGLang."""
    from importlib.metadata import version

    problems = find_problems(hooks)
    if problems:
        raise ConfigError(
            f"--enable-dynamic-spec does not fit SGLang {version('sglang')}: "
            f"{'; '.join(problems)}. Install a supported release (0.5.23), or remove the flag."
        )


def install(hooks: Iterable[Hook]) -> None:
    """Wrap each target with its handler, once in a process, over whatever is there by now.

    Not through ``HookRegistry.apply_hooks``: it leaves out targets that another plugin has hooked
    before, and only logs a hook that it cannot apply. Raises ConfigError for one that did not land.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        if hook.target in _installed:
            continue
        before = pkgutil.resolve_name(hook.target)
        HookRegistry._apply_target(hook.target, [(HookType[hook.kind], hook.handler, None)])
        if pkgutil.resolve_name(hook.target) is before:
            raise ConfigError(
                f"--enable-dynamic-spec: SGLang did not apply the hook on {hook.target}. "
                "Install a supported release (0.5.23), or remove the flag."
            )
        _installed.add(hook.target)


def enable_toggle() -> None:
    """Install the toggle's hooks in this process. Raises ConfigError if one does not fit."""
    check_contract()
    install(TOGGLE_HOOKS)


def enable_server() -> None:
    """As ``enable_toggle``, in a process that is to launch an HTTP server."""
    enable_toggle()
    check_contract(HTTP_HOOKS)
    install(HTTP_HOOKS)


def accept_engine_keywords() -> None:
    """Let ``Engine(enable_dynamic_spec=True, …)`` build its ServerArgs with our keywords.

    ``ServerArgs`` is a C-level record that rejects unknown keywords and whose constructor cannot be
    wrapped; the Engine class names its constructor in an attribute, which is set here.
    """
    name = "sglang.srt.entrypoints.engine"
    if multiprocessing.parent_process() is not None and name not in sys.modules:
        return  # a worker process without an Engine
    engine = importlib.import_module(name).Engine
    original = engine.server_args_class
    if not isinstance(original, type):
        return  # done before
    engine.server_args_class = staticmethod(
        functools.partial(args.from_keywords, original, enable_toggle)
    )
