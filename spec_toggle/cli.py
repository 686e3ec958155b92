"""``spec-toggle``: checks against an installed SGLang, patches, and a running server."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from spec_toggle import __version__
from spec_toggle.args import add_flags, exit_with
from spec_toggle.endpoint import EndpointError
from spec_toggle.operation import add_commands
from spec_toggle.source import Source, installed_source


def fail(error: Exception | str, code: int = 2) -> int:
    print(f"spec-toggle: error: {error}", file=sys.stderr)
    return code


def check(release: str | None = None) -> int:
    """Print every place of the contract with its verdict, for ``release`` or the installed one.

    Returns 0 if all of it holds, 1 if not or without SGLang, 2 if the release cannot be had.
    """
    from spec_toggle.releases import FetchError, source_of

    try:
        if release is not None:
            return _report(release, source_of(release))
        source = installed_source()
    except ModuleNotFoundError as error:
        return fail(error, 1)
    except FetchError as error:
        return fail(error)
    return _report(version("sglang"), source)


def _report(release: str, source: Source) -> int:
    from spec_toggle.assumptions import requirements
    from spec_toggle.contract import differences

    table = Table(title=f"spec-toggle {__version__} on SGLang {release}")
    for column in ("place", "kind", "why", "found"):
        table.add_column(column, overflow="fold")
    misfits = 0
    for requirement in requirements(source):
        problems = differences(source, requirement)
        misfits += bool(problems)
        place = requirement.target.removeprefix("sglang.srt.")
        short = (problem.removeprefix(f"{requirement.target} ") for problem in problems)
        table.add_row(place, requirement.kind, requirement.why, "; ".join(short) or "yes")
    table.caption = f"{misfits} of {table.row_count} places differ" if misfits else "all found"
    Console().print(table)
    return 1 if misfits else 0


def releases() -> int:
    """Print the table of releases that stands in the README."""
    from spec_toggle.assumptions import requirements
    from spec_toggle.contract import lacking
    from spec_toggle.releases import RELEASES, FetchError, source_of, support_table

    found = {}
    try:
        for release in RELEASES:
            source = source_of(release)
            places = requirements(source)
            found[release] = lacking(source, places), len(places)
    except FetchError as error:
        return fail(error)
    print(support_table(found))
    return 0


def flags() -> int:
    """Print the flags that the plugin adds to SGLang's server."""
    parser = argparse.ArgumentParser(prog="sglang serve", usage="sglang serve MODEL [options]")
    add_flags(parser)
    parser.print_help()
    return 0


def patch(action: str, target: str | None) -> int:
    """Print a line for each patch of the release. Returns 0, or 2 if nothing could be done."""
    from spec_toggle.patching import PatchError, run

    try:
        print("\n".join(run(action, target)))
    except PatchError as error:
        return fail(error)
    return 0


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        exit_with(ValueError(message))


def profile(given: argparse.Namespace) -> int:
    """Print, and plot, a saved profile. Returns 2, with one line on stderr, for a bad request."""
    from spec_toggle import profile_report
    from spec_toggle.profile_store import ProfileError, read_profile

    console = Console()
    try:
        if given.list:
            profile_report.list_profiles(console)
        elif given.profile is None:
            raise ProfileError("name a profile, or use --list.")
        else:
            found = read_profile(profile_report.find(given.profile))
            profile_report.show(found, console)
            if given.plot is not None:
                profile_report.plot(found, given.plot)
    except ProfileError as error:
        return fail(error)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="spec-toggle", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    _add_check(commands)
    flagging = commands.add_parser("flags", help="show the flags added to `sglang serve`")
    flagging.set_defaults(run=lambda _: flags())
    _add_patch(commands)
    _add_profile(commands)
    add_commands(commands)
    given = parser.parse_args(argv)
    try:
        return int(given.run(given))
    except EndpointError as error:
        exit_with(error)


def _add_check(commands: Any) -> None:
    checking = commands.add_parser("check", help="check the contract with the installed SGLang")
    which = checking.add_mutually_exclusive_group()
    which.add_argument("--release", metavar="X.Y.Z", help="check the wheel of a release instead")
    which.add_argument("--releases", action="store_true", help="print the table of releases")
    checking.set_defaults(run=lambda given: releases() if given.releases else check(given.release))


def _add_patch(commands: Any) -> None:
    patching = commands.add_parser("patch", help="apply, reverse or show the patches of a release")
    patching.add_argument("action", choices=("apply", "reverse", "status"))
    patching.add_argument(
        "--target", metavar="DIR", help="the folder that holds the package (default: installed)"
    )
    patching.set_defaults(run=lambda given: patch(given.action, given.target))


def _add_profile(commands: Any) -> None:
    profiles = commands.add_parser("profile", help="show costs that were measured for policy auto")
    profiles.add_argument("profile", nargs="?", metavar="FILE", help="a path, or a name of --list")
    profiles.add_argument("--list", action="store_true", help="list the saved profiles")
    profiles.add_argument("--plot", type=Path, metavar="FILE.png", help="plot it, too")
    profiles.set_defaults(run=profile)


if __name__ == "__main__":
    raise SystemExit(main())
