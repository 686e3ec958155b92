"""The commands that talk to a running server: status, set, force and top."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from spec_toggle.endpoint import Endpoint, EndpointError
from spec_toggle.top import show_top

DEFAULT_URL = "http://127.0.0.1:30000"
URL_VARIABLE, KEY_VARIABLE = "SPEC_TOGGLE_URL", "SPEC_TOGGLE_API_KEY"


def add_commands(commands: Any) -> None:
    """Add the subcommands; each sets ``run``, called with the parsed arguments."""
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url",
        default=os.environ.get(URL_VARIABLE, DEFAULT_URL),
        help=f"of the server (default: ${URL_VARIABLE}, or {DEFAULT_URL})",
    )
    server.add_argument(
        "--api-key",
        default=os.environ.get(KEY_VARIABLE),
        help=f"the server's --admin-api-key, or its --api-key (default: ${KEY_VARIABLE})",
    )

    def add(name: str, run: Callable[[argparse.Namespace], int], about: str) -> Any:
        command = commands.add_parser(name, parents=[server], help=about, description=about)
        command.set_defaults(run=run)
        return command

    command = add("status", status, "show the mode, settings and counters of a running server")
    command.add_argument("--json", action="store_true", help="print the server's answer as it is")
    command = add("set", set_values, "change settings of a running server")
    command.add_argument("settings", nargs="+", metavar="NAME=VALUE", help="e.g. threshold=24")
    command = add("force", force, "hold a mode against the policy for a time, or end that")
    command.add_argument("mode", choices=("spec", "plain", "none"))
    command.add_argument("--seconds", type=float, metavar="N", help="required for spec and plain")
    command = add("top", top, "watch load, mode, acceptance and throughput until Ctrl-C")
    command.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="(default: 1)"
    )
    command.add_argument("--count", type=int, metavar="N", help="stop after N looks")


def status(given: argparse.Namespace) -> int:
    engines = _endpoint(given).read()
    if given.json:
        print(json.dumps({"engines": engines}, indent=2))
    else:
        _print_states(engines)
    return 0


def set_values(given: argparse.Namespace) -> int:
    _print_states(_endpoint(given).steer(dict(map(_parse_setting, given.settings))))
    return 0


def force(given: argparse.Namespace) -> int:
    body = {"force": given.mode}
    if given.seconds is not None:
        body["seconds"] = given.seconds
    elif given.mode != "none":
        raise EndpointError(f"force {given.mode} needs --seconds N, after which it ends.")
    _print_states(_endpoint(given).steer(body))
    return 0


def top(given: argparse.Namespace) -> int:
    if not given.interval >= 0.1:
        raise EndpointError(f"--interval {given.interval} is too short. Use at least 0.1.")
    if given.count is not None and given.count < 1:
        raise EndpointError(f"--count {given.count} shows nothing. Use at least 1.")
    return show_top(Console(), _endpoint(given), given.interval, given.count)


def _endpoint(given: argparse.Namespace) -> Endpoint:
    return Endpoint(given.url, given.api_key)


def _parse_setting(text: str) -> tuple[str, int | float | str]:
    """``threshold=24``. What is no number goes on as text: the server says whether it can be."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise EndpointError(f"{text!r} is not a setting. Use NAME=VALUE, e.g. threshold=24.")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _print_states(engines: list[dict[str, Any]]) -> None:
    table = Table("", *(f"engine {i}" for i in range(len(engines))), show_header=len(engines) > 1)
    rows = [describe(engine, time.time()) for engine in engines]
    for name in rows[0]:
        table.add_row(name, *(row[name] for row in rows))
    Console().print(table)


def describe(engine: dict[str, Any], now: float) -> dict[str, str]:
    """One engine's state in words. ``now``: unix seconds."""
    totals, force_state = engine["totals"], engine["force"]
    verified, rounds = totals["verified_tokens"], totals["verifications"]
    left = "no" if force_state is None else f"{max(0.0, force_state['until'] - now):.0f} s more"
    return {
        "mode": f"{engine['mode'].upper()} ({engine['reason']})",
        "forced": left,
        "requests": f"{engine['batch_size']} running, {engine['queue_length']} queued",
        "settings": ", ".join(f"{k} {v}" for k, v in engine["config"].items() if v is not None),
        "iterations": f"{totals['rounds']} rounds, {totals['plain_steps']} plain steps",
        "tokens": f"{totals['spec_tokens']} of rounds, {totals['plain_tokens']} of plain steps",
        "accept length": f"{verified / rounds:.2f}" if rounds else "-",
        "switches": str(totals["switches"]),
    }
