"""Checking the contract with the installed SGLang, and installing the hooks."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import pkgutil
import sys
from collections.abc import Iterable
from importlib.metadata import version

from spec_toggle import args
from spec_toggle.assumptions import requirements
from spec_toggle.config import ConfigError
from spec_toggle.contract import lacking
from spec_toggle.hooks import HTTP_HOOKS, TOGGLE_HOOKS, Hook
from spec_toggle.releases import SUPPORTED
from spec_toggle.source import installed_source

NAMED = 3  # problems named in a refusal

# Targets that carry our handler in this process.
_installed: set[str] = set()


@functools.cache
def contract_problems() -> tuple[str, ...]:
    """What the source of the installed SGLang lacks of the contract."""
    source = installed_source()
    lacks = lacking(source, requirements(source))
    return tuple(problem for problems in lacks.values() for problem in problems)


def missing_targets(hooks: Iterable[Hook]) -> list[str]:
    """Targets that cannot be imported here, whatever the source says."""
    problems = []
    for hook in hooks:
        try:
            pkgutil.resolve_name(hook.target)
        except (ImportError, AttributeError) as error:
            problems.append(f"{hook.target} is missing ({error})")
    return problems


def refuse(problems: Iterable[str]) -> None:
    """Raise ConfigError if there are any problems."""
    found = list(problems)
    if not found:
        return
    more = f"; and {len(found) - NAMED} more, which spec-toggle check lists"
    raise ConfigError(
        f"--enable-dynamic-spec does not fit SGLang {version('sglang')}: "
        f"{'; '.join(found[:NAMED])}{more if len(found) > NAMED else ''}. "
        f"Install a supported release ({', '.join(SUPPORTED)}), or remove the flag."
    )


def install(hooks: Iterable[Hook]) -> None:
    """Wrap each target of this release with its handler, once in a process, over what is there.

    Not through ``HookRegistry.apply_hooks``: it leaves out targets that another plugin has hooked
    before, and only logs a hook that it cannot apply. Raises ConfigError, before any is installed
    if a target is missing, or for one that did not land.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    source = installed_source()
    here = [hook for hook in hooks if hook.where is None or hook.where.holds(source)]
    refuse(missing_targets(here))
    for hook in here:
        if hook.target in _installed:
            continue
        before = pkgutil.resolve_name(hook.target)
        HookRegistry._apply_target(hook.target, [(HookType[hook.kind], hook.handler, None)])
        if pkgutil.resolve_name(hook.target) is before:
            refuse([f"the hook on {hook.target} was not applied"])
        _installed.add(hook.target)


def enable_toggle() -> None:
    """Install the toggle's hooks at a launch. Raises ConfigError if the release does not fit."""
    refuse(contract_problems())
    install(TOGGLE_HOOKS)


def enable_server() -> None:
    """As ``enable_toggle``, in a process that is to launch an HTTP server."""
    enable_toggle()
    install(HTTP_HOOKS)


def accept_engine_keywords() -> None:
    """Let ``Engine(enable_dynamic_spec=True, …)`` build its ServerArgs with our keywords.

    ``ServerArgs`` rejects unknown keywords, and where it is a C-level record its constructor cannot
    be wrapped; the Engine class names its constructor in an attribute, which is set here.
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
