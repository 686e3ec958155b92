"""``spec-toggle profile``: saved cost tables, and where they put the switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from spec_toggle.cost import CostTable
from spec_toggle.policy import Mode
from spec_toggle.profile_store import Profile, ProfileError, profile_dir, read_profile

ACCEPT_STEP = 0.5


def find(name: str) -> Path:
    """A path, or the name of a saved profile or its beginning. Raises ProfileError."""
    if Path(name).exists():
        return Path(name)
    matches = sorted(profile_dir().glob(f"{name}*.json")) if "/" not in name else []
    if len(matches) == 1:
        return matches[0]
    found = f"{len(matches)} saved profiles begin so" if matches else "no such file or profile"
    raise ProfileError(f"{name}: {found}. See `spec-toggle profile --list`.")


def list_profiles(console: Console) -> None:
    """One line per saved profile; broken files are named as such."""
    paths = sorted(profile_dir().glob("*.json"))
    if not paths:
        console.print(f"No profiles in {profile_dir()}.")
        return
    table = Table(title=str(profile_dir()))
    for column in ("profile", "time", "gpu", "model", "speculation", "sglang"):
        table.add_column(column, overflow="fold")
    for path in paths:
        try:
            profile = read_profile(path)
        except ProfileError as error:
            table.add_row(path.stem, str(error))
            continue
        key = profile.key
        names = ("gpu", "model")
        values = (str(key.get(name, "?")) for name in names)
        table.add_row(path.stem, profile.time, *values, speculation(key), str(key.get("sglang")))
    console.print(table)


def speculation(key: dict[str, Any]) -> str:
    """Steps, top-k and draft tokens, as in 3-1-4."""
    names = ("num_steps", "eagle_topk", "num_draft_tokens")
    return "-".join(str(key.get(f"speculative_{name}", "?")) for name in names)


def show(profile: Profile, console: Console) -> None:
    key = profile.key
    console.print(
        f"{key.get('model', '?')} on {key.get('gpu', '?')}, SGLang {key.get('sglang', '?')}, "
        f"{speculation(key)}, draft sync {key.get('draft_sync', '?')}, {profile.time}"
    )
    console.print(_costs(profile.table))
    console.print(_boundary(profile.table, accept_lengths(profile)))


def accept_lengths(profile: Profile) -> list[float]:
    """From 1.5 to a round in which every draft is accepted."""
    steps = profile.key.get("speculative_num_steps")
    longest = 1 + steps if isinstance(steps, int) else 4
    return [1 + ACCEPT_STEP * n for n in range(1, int((longest - 1) / ACCEPT_STEP) + 1)]


def boundary(table: CostTable, context: float, accept: float) -> int:
    """The largest batch that rounds are faster for; 0 if they never are."""
    sizes = range(table.batch_sizes[-1], 0, -1)
    return next((size for size in sizes if table.break_even(size, context) < accept), 0)


def _costs(table: CostTable) -> Table:
    shown = Table(
        title="ms per plain step / per round, and the accept length that pays",
        caption="* not measured, filled in from its neighbours",
    )
    shown.add_column("batch size", justify="right")
    for context in table.contexts:
        shown.add_column(f"context {context}", justify="right")
    for size in table.batch_sizes:
        cells = []
        for context in table.contexts:
            is_measured = all(table.is_measured(mode, size, context) for mode in Mode)
            plain, spec = (table.ms(mode, size, context) for mode in (Mode.PLAIN, Mode.SPEC))
            mark = "" if is_measured else " *"
            cells.append(f"{plain:.2f} / {spec:.2f}  {spec / plain:.2f}{mark}")
        shown.add_row(str(size), *cells)
    return shown


def _boundary(table: CostTable, accepts: list[float]) -> Table:
    shown = Table(title="largest batch that speculates")
    shown.add_column("accept length", justify="right")
    for context in table.contexts:
        shown.add_column(f"context {context}", justify="right")
    for accept in accepts:
        sizes = (boundary(table, context, accept) for context in table.contexts)
        last = table.batch_sizes[-1]
        cells = ("never" if n == 0 else f"{n}{'+' * (n == last)}" for n in sizes)
        shown.add_row(f"{accept:.1f}", *cells)
    return shown


def plot(profile: Profile, path: Path) -> None:
    """Costs, and the boundary over the accept length. Raises ProfileError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ProfileError("--plot needs matplotlib: pip install matplotlib.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    table = profile.table
    figure, (costs, limits) = pyplot.subplots(1, 2, figsize=(10, 4))
    lengths = [1 + n / 20 for n in range(1, int(20 * (accept_lengths(profile)[-1] - 1)) + 1)]
    for index, context in enumerate(table.contexts):
        for mode, style in ((Mode.PLAIN, "o-"), (Mode.SPEC, "s--")):
            times = [table.ms(mode, size, context) for size in table.batch_sizes]
            label = f"{'plain step' if mode is Mode.PLAIN else 'round'}, context {context}"
            costs.plot(table.batch_sizes, times, style, color=f"C{index}", label=label, ms=4)
        sizes = [boundary(table, context, accept) for accept in lengths]
        limits.plot(lengths, sizes, color=f"C{index}", label=f"context {context}")
    costs.set(xscale="log", yscale="log", xlabel="batch size", ylabel="ms")
    limits.set(xlabel="accept length", ylabel="largest batch that speculates")
    for axes in (costs, limits):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise ProfileError(f"--plot {path}: cannot be written ({error}).") from None
    finally:
        pyplot.close(figure)
