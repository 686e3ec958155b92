"""``spec-toggle``: what the plugin offers, and whether the installed SGLang can take it."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spec_toggle import __version__
from spec_toggle.args import add_flags


def check() -> int:
    """Print every hook with its verdict. Returns 0 if all fit the installed SGLang, else 1."""
    try:
        release = version("sglang")
    except PackageNotFoundError:
        print("spec-toggle: error: SGLang is not installed in this environment.", file=sys.stderr)
        return 1
    from spec_toggle.hooks import FLAG_HOOKS, TOGGLE_HOOKS
    from spec_toggle.install import find_problems

    table = Table(title=f"spec-toggle {__version__} on SGLang {release}")
    for column in ("hook", "kind", "why", "fits"):
        table.add_column(column, overflow="fold")
    misfits = 0
    for hook in (*FLAG_HOOKS, *TOGGLE_HOOKS):
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
        print(f"spec-toggle: error: {error}", file=sys.stderr)
        return 2
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="spec-toggle", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="check every hook against the installed SGLang")
    commands.add_parser("flags", help="show the flags added to `sglang serve`")
    profiles = commands.add_parser("profile", help="show costs that were measured for policy auto")
    profiles.add_argument("profile", nargs="?", metavar="FILE", help="a path, or a name of --list")
    profiles.add_argument("--list", action="store_true", help="list the saved profiles")
    profiles.add_argument("--plot", type=Path, metavar="FILE.png", help="plot it, too")
    chosen = parser.parse_args(argv)
    if chosen.command == "profile":
        return profile(chosen)
    return {"check": check, "flags": flags}[chosen.command]()


if __name__ == "__main__":
    raise SystemExit(main())
