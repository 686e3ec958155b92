"""Check the plugin against the installed SGLang; see and steer a running server."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from spec_toggle import __version__
from spec_toggle.args import add_flags, exit_with
from spec_toggle.endpoint import EndpointError
from spec_toggle.operation import add_commands


def check() -> int:
    """Print every hook with its verdict. Returns 0 if all fit the installed SGLang, else 1."""
    try:
        release = version("sglang")
    except PackageNotFoundError:
        print("spec-toggle: error: SGLang is not installed in this environment.", file=sys.stderr)
        return 1
    from spec_toggle.hooks import FLAG_HOOKS, HTTP_HOOKS, TOGGLE_HOOKS
    from spec_toggle.install import find_problems

    table = Table(title=f"spec-toggle {__version__} on SGLang {release}")
    for column in ("hook", "kind", "why", "fits"):
        table.add_column(column, overflow="fold")
    misfits = 0
    for hook in (*FLAG_HOOKS, *TOGGLE_HOOKS, *HTTP_HOOKS):
        problems = find_problems([hook])
        misfits += bool(problems)
        name = hook.target.removeprefix("sglang.srt.")
        table.add_row(name, hook.kind.lower(), hook.why, "; ".join(problems) or "yes")
    Console().print(table)
    return 1 if misfits else 0


def flags() -> int:
    """Print the flags that the plugin adds to SGLang's server."""
    parser = argparse.ArgumentParser(prog="sglang serve", usage="sglang serve MODEL [options]")
    add_flags(parser)
    parser.print_help()
    return 0


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        exit_with(ValueError(message))


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="spec-toggle", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, run, about in (
        ("check", check, "check every hook against the installed SGLang"),
        ("flags", flags, "show the flags added to `sglang serve`"),
    ):
        commands.add_parser(name, help=about).set_defaults(run=lambda _, run=run: run())
    add_commands(commands)
    given = parser.parse_args(argv)
    try:
        return int(given.run(given))
    except EndpointError as error:
        exit_with(error)
