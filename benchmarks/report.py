"""``python3 -m benchmarks.report FILE...``: tables on stdout, a plot per file, and the bars."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.envelope_result import Result


@dataclass(frozen=True)
class Bar:
    """``arm`` must reach ``ratio`` of ``reference`` in output tok/s, at ``levels`` (None: all)."""

    arm: str
    reference: str
    ratio: float
    levels: tuple[int, ...] | None


BARS = (
    Bar("forced_plain_off", "none", 0.99, (64, 128, 256)),
    Bar("toggle", "envelope", 0.98, None),
    Bar("auto", "envelope", 0.98, None),
)
FORCED = ("forced_plain_off", "forced_plain_deferred", "forced_plain_eager")
PLOTTED = {
    "none": "o-",
    "static": "s-",
    "adaptive": "^-",
    "toggle": "D-",
    "auto": "v-",
    "envelope": "k--",
}


def checks(result: Result) -> Iterator[tuple[Bar, int, float]]:
    """Every bar at every level where both of its sides are measured, with the ratio reached."""
    for bar in BARS:
        for level in bar.levels or result.levels:
            ratio = result.ratio(bar.arm, bar.reference, level)
            if ratio is not None:
                yield bar, level, ratio


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def throughput_table(result: Result) -> str:
    """Output tok/s of the arms a user may choose between, and what the toggle makes of them."""
    arms = ("none", "static", "adaptive", "toggle")
    has_auto = "auto" in result.arms
    head = ["concurrency"]
    for arm in arms:
        head += [arm] if arm == "none" else [arm, f"{arm} / none"]
    rows = []
    for level in result.levels:
        cells = [str(level)]
        for arm in arms:
            cells.append(_number(result.rate(arm, level)))
            if arm != "none":
                cells.append(_number(result.ratio(arm, "none", level), 2))
        envelope = result.rate("envelope", level)
        cells += [_number(envelope), _number(result.ratio("toggle", "envelope", level), 3)]
        if has_auto:
            ratio = result.ratio("auto", "envelope", level)
            cells += [_number(result.rate("auto", level)), _number(ratio, 3)]
        rows.append(cells)
    head += ["envelope", "toggle / envelope"]
    return _table([*head, "auto", "auto / envelope"] if has_auto else head, rows)


def off_tax_table(result: Result) -> str:
    """Forced-plain servers against one without speculation, and that one against itself later."""
    arms = [arm for arm in FORCED if arm in result.arms]
    head = ["concurrency", "none", "none_again", "none_again / none", "compared with"]
    for arm in arms:
        head += [arm, "ratio", "TPOT p50 ratio"]
    rows = []
    for level in result.levels:
        if not any(result.rate(arm, level) for arm in (*arms, "none_again")):
            continue
        reference = " and ".join(result.plain_references(arms[0], level)) if arms else "none"
        cells = [str(level), _number(result.rate("none", level))]
        cells += [_number(result.rate("none_again", level))]
        cells += [_number(result.ratio("none_again", "none", level), 3), reference]
        for arm in arms:
            cells += [
                _number(result.rate(arm, level)),
                _number(result.ratio(arm, "none", level), 3),
            ]
            cells.append(_number(_tpot_ratio(result, arm, level), 3))
        rows.append(cells)
    return _table(head, rows)


def _tpot_ratio(result: Result, arm: str, level: int) -> float | None:
    above = (result.entry(arm, level) or {}).get("tpot_ms_p50")
    below = result.plain_mean(arm, level, "tpot_ms_p50")
    return float(above / below) if above and below else None


def server_table(result: Result) -> str:
    head = ["arm", "start s", "GPU GiB", "native graphs s", "native graphs GB", "error"]
    rows = []
    for name, arm in result.arms.items():
        config = arm.get("config", {})
        numbers = [arm.get("startup_s"), arm.get("gpu_mem_gb")]
        numbers += [config.get("native_graph_s"), config.get("native_graph_gb")]
        error = arm.get("error", "").splitlines()
        rows.append([name, *(_number(n, 1) for n in numbers), error[0] if error else ""])
    return _table(head, rows)


def render(result: Result) -> str:
    p = result.provenance
    spec = p["spec"]
    setting = (
        f"SGLang {p['sglang']}, {p['gpu']}, {p['attention_backend']}, {p['model']}, EAGLE-3 "
        f"{spec['steps']}-{spec['topk']}-{spec['draft_tokens']}, accept length "
        f"{p['simulated_accept'] or 'real'}, {p['input_len']} in / {p['output_len']} out, "
        f"commit {' and '.join(result.commits)}"
    )
    parts = [f"### {result.name}", setting, "Output tok/s:", throughput_table(result)]
    if any(arm.startswith("forced_plain") or arm == "none_again" for arm in result.arms):
        parts += ["Cost of the toggle while it is off:", off_tax_table(result)]
    return "\n\n".join([*parts, "Servers:", server_table(result)])


def render_checks(result: Result) -> tuple[str, bool]:
    """The bars as a table, and whether all hold; a file that measures none of them fails."""
    rows, passed = [], []
    for bar, level, ratio in checks(result):
        passed.append(ratio >= bar.ratio)
        verdict = "ok" if passed[-1] else "MISSED"
        rows.append([f"{bar.arm} / {bar.reference}", str(level), f"{ratio:.3f}"])
        rows[-1] += [f">= {bar.ratio}", verdict]
    text = _table(["bar", "concurrency", "reached", "wanted", "verdict"], rows)
    return text, bool(passed) and all(passed)


def plot(result: Result, path: Path) -> bool:
    """False without matplotlib, which a measuring machine need not have."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for arm, style in PLOTTED.items():
        points = [(n, rate) for n in result.levels if (rate := result.rate(arm, n)) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=arm, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_xticks(result.levels, [str(level) for level in result.levels])
    axes.set_xlabel("concurrency")
    axes.set_ylabel("output tokens / s")
    axes.set_ylim(bottom=0)
    axes.set_title(result.name, fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    return True


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out-dir", type=Path, help="write a PNG plot per file there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    arguments = parser.parse_args(argv)
    try:
        results = [Result.read(path) for path in arguments.files]
    except (OSError, ValueError) as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    all_pass = True
    for result in results:
        print(render(result), end="\n\n")
        if arguments.check:
            text, passed = render_checks(result)
            print(
                text if passed else f"{text}\n\nA bar is missed, or none is measured.", end="\n\n"
            )
            all_pass = all_pass and passed
        if arguments.out_dir is not None:
            arguments.out_dir.mkdir(parents=True, exist_ok=True)
            if not plot(result, arguments.out_dir / f"{result.name}.png"):
                print("no plot: matplotlib is not installed", file=sys.stderr)
    return 0 if all_pass else 1


if __name__ == "__main__":
    sys.exit(main())
