"""The flags: offered on SGLang's own parser and as keyword arguments of its Engine."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from spec_toggle.config import (
    DRAFT_SYNCS,
    ENVIRONMENT,
    POLICIES,
    ConfigError,
    DynamicSpecConfig,
    build_config,
)
from spec_toggle.support import check_support

logger = logging.getLogger(__name__)

ENABLE = "enable_dynamic_spec"
CONFIG_FILE = "dynamic_spec_config"
VALUES = {
    "policy": "dynamic_spec_policy",
    "threshold": "dynamic_spec_threshold",
    "hysteresis": "dynamic_spec_hysteresis",
    "dwell": "dynamic_spec_dwell",
    "margin": "dynamic_spec_margin",
    "skip_profile": "dynamic_spec_skip_profile",
    "draft_sync": "dynamic_spec_draft_sync",
    "sync_tokens": "dynamic_spec_sync_tokens",
}
ALL_NAMES = (ENABLE, CONFIG_FILE, *VALUES.values())

LIMIT_STAYS = (
    "Dynamic speculation: unset, max_running_requests stays what a server without speculation gets."
)
# Where a ServerArgs carries its configuration: underscore attributes are not configuration fields
# of the record, and survive pickling.
ATTRIBUTE = "_dynamic_spec_config"
FROM_CLI = "_dynamic_spec_from_cli"


def add_flags(parser: argparse.ArgumentParser) -> None:
    defaults = DynamicSpecConfig()
    group = parser.add_argument_group("dynamic speculation (spec-toggle)")
    group.add_argument(
        "--enable-dynamic-spec",
        action="store_true",
        help="Speculate only while it pays; decode natively otherwise.",
    )
    group.add_argument(
        "--dynamic-spec-policy",
        choices=POLICIES,
        help="threshold: by batch size. auto: by measured costs, accept length and context "
        f"(default: {defaults.policy}).",
    )
    group.add_argument(
        "--dynamic-spec-threshold",
        type=int,
        metavar="N",
        help="Largest decode batch that speculates; 0 never speculates "
        f"(default: {defaults.threshold}).",
    )
    group.add_argument(
        "--dynamic-spec-hysteresis",
        type=int,
        metavar="N",
        help="Speculate again once the batch is N below the threshold (default: threshold // 8).",
    )
    group.add_argument(
        "--dynamic-spec-dwell",
        type=int,
        metavar="N",
        help="Iterations the batch must stay that small, or speculation stay that much faster, "
        "before it returns "
        f"(default: {defaults.dwell}).",
    )
    group.add_argument(
        "--dynamic-spec-margin",
        type=float,
        metavar="SHARE",
        help="auto: share by which speculation must be faster before it returns "
        f"(default: {defaults.margin}).",
    )
    group.add_argument(
        "--dynamic-spec-skip-profile",
        action="store_true",
        default=None,
        help="auto: time no iterations at start; learn what they cost in service only.",
    )
    group.add_argument(
        "--dynamic-spec-draft-sync",
        choices=DRAFT_SYNCS,
        help="deferred: the draft's KV is written for many plain tokens at once. eager: one "
        "draft-extend per plain step. off: never, the draft resumes over a hole "
        f"(default: {defaults.draft_sync}).",
    )
    group.add_argument(
        "--dynamic-spec-sync-tokens",
        type=int,
        metavar="N",
        help="Plain tokens of the whole batch that deferred sync collects before it writes their "
        f"draft KV (default: {defaults.sync_tokens}).",
    )
    group.add_argument(
        "--dynamic-spec-config",
        metavar="FILE.toml",
        help="Read the same settings from the [dynamic_spec] table of a TOML file; flags win.",
    )


def take_config(given: dict[str, Any]) -> DynamicSpecConfig | None:
    """The configuration that ``given`` (flag name to value, None: unset) asks for.

    Raises ConfigError for a value out of range, or for a setting without the enabling flag.
    """
    settings = {name: given.get(flag) for name, flag in VALUES.items()}
    path = given.get(CONFIG_FILE)
    if not given.get(ENABLE):
        stray = [f for f in (CONFIG_FILE, *VALUES.values()) if given.get(f) is not None]
        if stray:
            flag = "--" + stray[0].replace("_", "-")
            raise ConfigError(
                f"{flag} {given[stray[0]]} has no effect without --enable-dynamic-spec. "
                "Add that flag, or remove this one."
            )
        return None
    return build_config(settings, path)


def from_cli_args(
    original: Callable[..., Any], enable: Callable[[], None], cls: Any, args: argparse.Namespace
) -> Any:
    """``ServerArgs.from_cli_args``: attach the configuration, stop the launch on a bad one."""
    try:
        config = take_config({name: getattr(args, name, None) for name in ALL_NAMES})
        server_args = original(cls, args)
        attach(server_args, config, enable)
        _keep_limit(server_args, config, getattr(args, "max_running_requests", None))
    except ConfigError as error:
        exit_with(error)
    setattr(server_args, FROM_CLI, True)
    return server_args


def from_keywords(server_args_class: Any, enable: Callable[[], None], **kwargs: Any) -> Any:
    """``Engine(**kwargs)``: build ServerArgs from the host's keywords and attach ours."""
    given = {name: kwargs.pop(name) for name in ALL_NAMES if name in kwargs}
    config = take_config(given)
    server_args = server_args_class(**kwargs)
    attach(server_args, config, enable)
    _keep_limit(server_args, config, kwargs.get("max_running_requests"))
    return server_args


def _keep_limit(server_args: Any, config: DynamicSpecConfig | None, asked: int | None) -> None:
    """Speculation lowers an unset limit to 48, before 0.5.20 in the constructor of the record.

    There nothing else has read it yet; later releases have a hook for it.
    """
    if config is not None and asked is None and server_args.max_running_requests is not None:
        server_args.max_running_requests = None
        logger.info(LIMIT_STAYS)


def attach(server_args: Any, config: DynamicSpecConfig | None, enable: Callable[[], None]) -> None:
    """Give ``server_args`` its configuration; ``enable`` installs the toggle's hooks."""
    setattr(server_args, ATTRIBUTE, config)
    # One inherited from another launch must not switch the toggle on in this one's processes.
    os.environ.pop(ENVIRONMENT, None)
    if config is not None:
        check_support(server_args)
        enable()


def exit_with(error: Exception) -> NoReturn:
    """End a command-line launch with one line. The host's loader swallows exceptions, not exits."""
    print(f"spec-toggle: error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2)
