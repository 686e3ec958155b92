"""Turning the reference engine on, and the stand-in module, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spec_toggle.reference import amx, launch  # noqa: E402

ROOT = Path(launch.__file__).parents[2]


def run(code: str, folder: Path | None = None) -> str:
    environ = {k: v for k, v in os.environ.items() if k != launch.ENABLE_VARIABLE}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([str(folder)] if folder else [])])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def real_wheel(tmp_path):
    """A folder with what the stand-in takes from the real wheel, whose import always fails."""
    (tmp_path / "sgl_kernel").mkdir()
    (tmp_path / "sgl_kernel" / "__init__.py").write_text("raise ImportError('libcuda.so.1')")
    (tmp_path / "sgl_kernel" / "scalar_type.py").write_text("answer = 42")
    return tmp_path


def test_environment_puts_the_stand_in_first_and_only_once():
    first = launch.reference_environment({"PYTHONPATH": os.pathsep.join(["/a", "/b"])})
    assert first["PYTHONPATH"].split(os.pathsep) == [str(launch.SHIM_DIR), "/a", "/b"]
    assert launch.reference_environment(first) == first
    assert first["SGLANG_USE_CPU_ENGINE"] == "1" and launch.is_requested(first)
    assert not launch.is_requested({})
    assert first["OMP_NUM_THREADS"] == first["TORCHDYNAMO_DISABLE"] == "1"
    assert launch.reference_environment({"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_activate_reaches_this_process_and_its_children(real_wheel):
    code = (
        "import os, subprocess, sys; from spec_toggle.reference.launch import activate;"
        "activate(); activate(); import sgl_kernel; print(sgl_kernel.IS_SPEC_TOGGLE_REFERENCE);"
        "child = 'import sgl_kernel; print(sgl_kernel.IS_SPEC_TOGGLE_REFERENCE)';"
        "sys.stdout.flush(); subprocess.run([sys.executable, '-c', child], check=True)"
    )
    assert run(code, real_wheel).split() == ["True", "True"]


@pytest.mark.parametrize("module", ["sglang", "sgl_kernel"])
def test_activate_refuses_to_come_late(monkeypatch, module):
    monkeypatch.delenv(launch.ENABLE_VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("sglang", "sgl_kernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, type(sys)(module))
    before = list(sys.path)
    with pytest.raises(RuntimeError, match="imported already"):
        launch.activate()
    assert sys.path == before and not launch.is_requested()


def test_activate_refuses_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="GPU"):
        launch.activate()
    with pytest.raises(SystemExit, match="GPU"):
        launch.main(["true"])


def test_launch_runs_the_command_with_the_stand_in(real_wheel):
    code = (
        "import sys; from spec_toggle.reference.launch import main;"
        "main([sys.executable, '-c', 'import sgl_kernel; print(sgl_kernel.__file__)'])"
    )
    assert run(code, real_wheel) == str(launch.SHIM_DIR / "sgl_kernel" / "__init__.py")


def test_launch_keeps_native_cpu_kernels(tmp_path):
    (tmp_path / "sgl_kernel.py").write_text(
        "import torch\n"
        "library = torch.library.Library('sgl_kernel', 'FRAGMENT')\n"
        "library.define('decode_attention_cpu() -> ()')\n"
        "library.define('extend_attention_cpu() -> ()')\n"
        "build_tree_kernel_efficient_cpu = None\n"
    )
    code = (
        "import sys; from spec_toggle.reference.launch import main;"
        "main([sys.executable, '-c', 'import sgl_kernel; print(sgl_kernel.__file__)'])"
    )
    assert run(code, tmp_path) == str(tmp_path / "sgl_kernel.py")


STAND_IN = (
    "from spec_toggle.reference.launch import activate; activate(); import sgl_kernel, torch;"
)


def test_ops_exist_only_when_implemented(real_wheel):
    code = STAND_IN + (
        "ops = torch.ops.sgl_kernel;"
        "names = ('decode_attention_cpu', 'extend_attention_cpu', 'convert_weight_packed');"
        "print(*(hasattr(ops, name) for name in names))"
    )
    assert run(code, real_wheel) == "True True False"


def test_placeholders_raise_when_they_are_called(real_wheel):
    code = STAND_IN + (
        "from sgl_kernel.kvcacheio import transfer_kv; from sgl_kernel import silu_and_mul\n"
        "for f in (transfer_kv, silu_and_mul):\n"
        "    try: f()\n"
        "    except NotImplementedError as error: print(str(error).split()[0])\n"
    )
    assert run(code, real_wheel).split() == [
        "sgl_kernel.kvcacheio.transfer_kv",
        "sgl_kernel.silu_and_mul",
    ]


def test_scalar_type_comes_from_the_wheel(real_wheel):
    code = STAND_IN + "from sgl_kernel.scalar_type import answer; print(answer)"
    assert run(code, real_wheel) == "42"


def test_every_op_sglang_imports_is_real(real_wheel):
    names = (
        "copy_all_layer_kv_cache_cpu fill_bonus_tokens_cpu fill_accept_out_cache_loc_cpu "
        "assign_draft_cache_locs_contiguous_cpu assign_extend_cache_locs_cpu "
        "assign_req_to_token_pool_cpu build_draft_decode_metadata_cpu "
        "build_tree_kernel_efficient_cpu verify_tree_greedy_cpu"
    )
    code = STAND_IN + f"print(*[n for n in '{names}'.split() if n not in vars(sgl_kernel)])"
    assert run(code, real_wheel) == ""


def test_amx_hook_undoes_only_the_fallback_to_torch_native():
    assert amx.keep_intel_amx(lambda view: {"attention_backend": "torch_native"}, 1) == {}
    assert amx.keep_intel_amx(lambda view: {"attention_backend": "triton"}, 1) == {
        "attention_backend": "triton"
    }
    assert amx.keep_intel_amx(lambda view: {}, 1) == {}


def test_overlap_hook_declares_nothing():
    def original(server_args):
        raise AssertionError("the original must not run")

    assert amx.keep_overlap(original, object()) is None


def test_gather_hook_keeps_a_missing_buffer():
    rows = torch.arange(12).view(4, 3)
    first, last = amx.gather_in_torch(None, torch.tensor([2, 0]), rows, None)
    assert first.tolist() == [[6, 7, 8], [0, 1, 2]] and last is None
