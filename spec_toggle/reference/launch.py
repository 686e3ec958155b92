"""``python -m spec_toggle.reference.launch CMD ...``: run a command with the reference CPU engine.

The stand-in for ``sgl_kernel`` is put first on ``PYTHONPATH``, because SGLang's spawned processes
import the module too. Never active where a GPU is visible.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SHIM_DIR = Path(__file__).resolve().parent / "shim"
ENABLE_VARIABLE = "SPEC_TOGGLE_REFERENCE_ENGINE"

_PROBE = (
    "import torch, sgl_kernel; ops = torch.ops.sgl_kernel; "
    "ops.decode_attention_cpu, ops.extend_attention_cpu, sgl_kernel.build_tree_kernel_efficient_cpu"
)


def reference_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that turn the reference engine on; what ``environ`` has of them is kept."""
    entries = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    others = [p for p in entries if p != str(SHIM_DIR)]
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        ENABLE_VARIABLE: "1",
        # With tiny models more threads only wait for each other, very long on a busy machine.
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1"),
        # The first round would wait for a C++ compiler, which a test machine may not even have.
        "TORCHDYNAMO_DISABLE": environ.get("TORCHDYNAMO_DISABLE", "1"),
        "PYTHONPATH": os.pathsep.join([str(SHIM_DIR), *others]),
    }


def is_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started, or activated, for the reference engine."""
    return environ.get(ENABLE_VARIABLE) == "1"


def activate() -> None:
    """Turn the reference engine on in this process and its children.

    Raises:
        RuntimeError: a GPU is visible, or SGLang or another ``sgl_kernel`` is imported already.
    """
    _refuse_gpu()
    kernel = sys.modules.get("sgl_kernel")
    if kernel is not None and "IS_SPEC_TOGGLE_REFERENCE" not in vars(kernel):
        raise RuntimeError("another sgl_kernel is imported already: activate() must come first")
    if kernel is None and "sglang" in sys.modules and not is_requested():
        raise RuntimeError("sglang is imported already: activate() must come first")
    os.environ.update(reference_environment())
    if str(SHIM_DIR) in sys.path:
        sys.path.remove(str(SHIM_DIR))
    sys.path.insert(0, str(SHIM_DIR))


def has_native_cpu_kernels() -> bool:
    """Whether a real ``sgl_kernel`` with CPU ops can be imported, tried in a process of its own."""
    environ = dict(os.environ)
    paths = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p != str(SHIM_DIR)]
    environ["PYTHONPATH"] = os.pathsep.join(paths)
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE], env=environ, capture_output=True, check=False
    )
    return probe.returncode == 0


def main(argv: list[str] | None = None) -> None:
    command = sys.argv[1:] if argv is None else argv
    if not command:
        raise SystemExit("usage: python -m spec_toggle.reference.launch CMD ...")
    try:
        _refuse_gpu()
    except RuntimeError as error:
        raise SystemExit(f"spec-toggle: {error}") from None
    additions = reference_environment()
    if has_native_cpu_kernels():
        print("spec-toggle: using the native CPU kernels of sgl_kernel", file=sys.stderr)
        del additions["PYTHONPATH"]
    else:
        print("spec-toggle: using the pure-PyTorch reference CPU ops", file=sys.stderr)
    os.environ.update(additions)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"spec-toggle: cannot run {command[0]!r}: {error.strerror}") from None


def _refuse_gpu() -> None:
    # Imported here: a process that only asks for the environment needs no torch.
    import torch

    if torch.cuda.is_available():
        raise RuntimeError("a GPU is visible: the reference CPU engine is for machines without one")


if __name__ == "__main__":
    main()
