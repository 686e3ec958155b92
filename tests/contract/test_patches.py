"""Patches for what hooks cannot do, on the pristine wheel of their release."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from spec_toggle import patching
from spec_toggle.cli import main
from spec_toggle.source import Source
from tests.contract.wheels import fetched

PATCHES = sorted(patching.PATCHES.glob("*/*.patch"))
PATCHED = sorted({path.parent.name for path in PATCHES})
ROOT = Path(__file__).resolve().parents[2]


def unpack(release: str, folder: Path, only: tuple[str, ...] = ()) -> Path:
    """The files of a release's wheel: all of them, or the metadata and those that match."""
    with zipfile.ZipFile(fetched(release)) as archive:
        names = archive.namelist()
        wanted = [n for n in names if not only or ".dist-info/" in n or n.startswith(only)]
        archive.extractall(folder, wanted)
    return folder


def changed_files(release: str) -> tuple[str, ...]:
    return tuple(name for patch in patching.patches_for(release) for name in patch.changes)


@pytest.fixture(params=PATCHED)
def pristine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files that a release's patches change, and its metadata."""
    return unpack(request.param, tmp_path, changed_files(request.param))


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def patch(action: str, folder: Path) -> int:
    return main(["patch", action, "--target", str(folder)])


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_patch_has_its_headers_and_changes_files(path: Path) -> None:
    head = path.read_text().split("\n\n", 1)[0].splitlines()
    assert [line.split(": ")[0] for line in head] == list(patching.HEADERS)
    assert all(line.split(": ", 1)[1].strip() for line in head)
    assert f"sglang {path.parent.name}:" in head[2]
    assert path.read_text().count("\ndiff --git ") == len(patching.Patch.read(path).changes) > 0


@pytest.mark.parametrize("release", PATCHED)
def test_patches_of_a_release_change_different_files(release: str) -> None:
    """So that the state of each one is known from the content of its own files."""
    names = changed_files(release)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("release", PATCHED)
def test_apply_and_reverse_are_exact_over_the_whole_wheel(release: str, tmp_path: Path) -> None:
    folder = unpack(release, tmp_path)
    before = hashes(folder)
    assert patch("apply", folder) == 0
    after = hashes(folder)
    assert {n for n in {*before, *after} if before.get(n) != after.get(n)} == set(
        changed_files(release)
    )
    for name in changed_files(release):
        compile((folder / name).read_text(), name, "exec")
    assert patch("reverse", folder) == 0
    assert hashes(folder) == before


def test_applying_and_reversing_again_changes_nothing(
    pristine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action, done in (("apply", "applied"), ("reverse", "not applied")):
        assert patch(action, pristine) == 0
        once = hashes(pristine)
        capsys.readouterr()
        assert patch(action, pristine) == 0
        assert hashes(pristine) == once
        lines = capsys.readouterr().out.splitlines()
        assert lines and all(line.endswith(f": {done} already") for line in lines)
        assert patch("status", pristine) == 0
        assert all(s.endswith(f": {done}") for s in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("action", ["apply", "reverse"])
def test_a_file_in_an_unknown_state_is_refused(
    action: str, pristine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if action == "reverse":
        patch("apply", pristine)
    victim = next(pristine.glob("sglang/cli/serve.py"))
    victim.write_text(victim.read_text() + "# edited\n")
    before = hashes(pristine)
    assert patch(action, pristine) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sglang/cli/serve.py" in line and "neither pristine nor patched" in line
    assert hashes(pristine) == before
    assert patch("status", pristine) == 0
    assert "unknown: " in capsys.readouterr().out


def test_a_release_without_patches_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack("0.5.15", tmp_path, ("sglang/cli/",))
    before = hashes(folder)
    assert patch("apply", folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no patches for sglang 0.5.15" in line and "0.5.9" in line
    assert hashes(folder) == before


def test_a_folder_without_sglang_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert patch("apply", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line and "does not hold sglang" in line


def test_a_machine_without_git_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack("0.5.23", tmp_path, changed_files("0.5.23"))
    monkeypatch.setenv("PATH", "")
    assert patch("apply", folder) == 2
    assert "git is needed" in capsys.readouterr().err


def test_a_repository_around_the_folder_does_not_matter(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    folder = unpack("0.5.23", tmp_path / "venv", changed_files("0.5.23"))
    before = hashes(folder)
    assert patch("apply", folder) == 0
    assert hashes(folder) != before


# The ways into a patched 0.5.9 with a loader that tells that it was called, then a real launch.
WAYS_IN = """
    import inspect, runpy, sys
    import sglang.srt.plugins as plugins
    from sglang.cli.serve import serve
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.managers.scheduler import run_scheduler_process

    class Loaded(Exception): ...

    def load_plugins():
        raise Loaded

    ways = {
        "serve": lambda: serve(None, ["--help"]),
        "engine": lambda: Engine(model_path="dummy"),
        "scheduler": lambda: run_scheduler_process(
            *[None] * len(inspect.signature(run_scheduler_process).parameters)
        ),
    }
    original, plugins.load_plugins = plugins.load_plugins, load_plugins
    for name, enter in ways.items():
        try:
            enter()
        except Loaded:
            print("loads:", name)
    plugins.load_plugins = original
    runpy.run_module("sglang.launch_server", run_name="__main__")
"""


def python(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code with the SGLang in ``folder``, this environment's dependencies, and no GPU."""
    shim = ROOT / "spec_toggle" / "reference" / "shim"
    path = os.pathsep.join(map(str, (folder, shim, ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1"}
    environment.pop("SPEC_TOGGLE_REFERENCE_ENGINE", None)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def patched_059(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = unpack("0.5.9", tmp_path_factory.mktemp("sglang-0.5.9"))
    assert patch("apply", folder) == 0
    return folder


def test_on_059_every_process_loads_plugins_and_the_flag_is_refused_with_a_reason(
    patched_059: Path,
) -> None:
    arguments = ("--model-path", "dummy", "--device", "cpu", "--enable-dynamic-spec")
    speculation = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "draft")
    ran = python(patched_059, WAYS_IN, *arguments, *speculation)
    loads = [line for line in ran.stdout.splitlines() if line.startswith("loads:")]
    assert loads == ["loads: serve", "loads: engine", "loads: scheduler"], ran.stderr[-2000:]
    assert ran.returncode == 2
    line = ran.stderr.strip().splitlines()[-1]
    assert line.startswith("spec-toggle: error: --enable-dynamic-spec does not fit SGLang 0.5.9")
    assert "spec-toggle check lists" in line


def test_hooks_of_the_loader_for_059(patched_059: Path) -> None:
    code = """
        import types, sys
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        host = types.ModuleType("host")
        class Host:
            def method(self, x): return [x]
            @classmethod
            def of(cls, x): return [cls.__name__, x]
            @staticmethod
            def free(x): return [x]
        host.Host = Host
        sys.modules["host"] = host
        register = HookRegistry.register
        register("host.Host.method", lambda self, x: ((self, x + 1), {}), HookType.BEFORE)
        register("host.Host.method", lambda result, self, x: [*result, "after"], HookType.AFTER)
        register("host.Host.of", lambda original, cls, x: original(cls, x * 2), HookType.AROUND)
        register("host.Host.free", lambda x: "replaced", HookType.REPLACE)
        register("host.Host.missing", print)
        HookRegistry.apply_hooks()
        HookRegistry.apply_hooks()
        assert Host().method(1) == [2, "after"], Host().method(1)
        assert Host.of(2) == ["Host", 4]
        assert Host().free(1) == Host.free(1) == "replaced"
    """
    ran = python(patched_059, code)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "Failed to apply hooks to host.Host.missing" in ran.stderr


@pytest.mark.parametrize("release", PATCHED)
def test_serve_loads_plugins_before_it_looks_for_help(release: str, tmp_path: Path) -> None:
    folder = unpack(release, tmp_path, changed_files(release))
    assert patch("apply", folder) == 0
    serve = Source(folder).find("sglang.cli.serve.serve")
    assert serve is not None and serve.node is not None
    text = ast.unparse(serve.node)
    assert text.count("load_plugins()") == 1
    assert text.index("load_plugins()") < text.index("'--help'")


def test_an_installed_package_has_the_patches(tmp_path: Path) -> None:
    """Build a wheel from the committed and edited files, and run the command from it."""
    source, built = tmp_path / "source", tmp_path / "built"
    shutil.copytree(
        ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".*", "benchmarks", "*.egg-info")
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(built)]
    subprocess.run([*pip, "install", *options, str(source)], check=True, capture_output=True)
    code = "import sys; from spec_toggle.cli import main; sys.exit(main(sys.argv[1:]))"
    folder = unpack("0.5.23", tmp_path / "sglang", changed_files("0.5.23"))
    ran = subprocess.run(
        [sys.executable, "-c", code, "patch", "apply", "--target", str(folder)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(built)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "0001-serve-help-loads-plugins: applied" in ran.stdout
    installed = sorted(p.relative_to(built) for p in built.glob("spec_toggle/patches/*/*.patch"))
    assert [p.name for p in installed] == [p.name for p in PATCHES]
