"""Stand-in for ``sgl_kernel`` on a machine where the real one cannot run.

The folder above this one goes first on ``PYTHONPATH`` (see ``spec_toggle.reference.launch``).
SGLang imports many names at import time that no CPU path calls: those are placeholders that raise
when they are called. Ops reached as ``torch.ops.sgl_kernel.X`` exist only when implemented,
because SGLang takes the existence of an op for a capability of the machine.
"""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

_SHIM = Path(__file__).resolve().parents[1]
try:
    import spec_toggle.reference  # noqa: F401
except ImportError:  # running from a source tree that is not installed
    sys.path.append(str(_SHIM.parents[2]))

from spec_toggle.reference.attention_ops import (  # noqa: E402
    decode_attention_cpu,
    extend_attention_cpu,
)
from spec_toggle.reference.cache_ops import (  # noqa: E402, F401
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from spec_toggle.reference.tree_ops import (  # noqa: E402, F401
    build_tree_kernel_efficient_cpu,
    verify_tree_greedy_cpu,
)

IS_SPEC_TOGGLE_REFERENCE = True

# Mutated arguments are marked; the schemas otherwise follow the call sites.
_OPS = {
    "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, "
    "float v_scale, Tensor(c!) output, Tensor? key, Tensor? value, Tensor? loc, "
    "Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size, "
    "Tensor? encoder_lens, Tensor? sinks) -> ()": decode_attention_cpu,
    "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, "
    "Tensor(a!) o_extend, Tensor k_buffer, Tensor v_buffer, float k_scale, float v_scale, "
    "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
    "Tensor extend_start_loc, int? max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, "
    "Tensor? tree_mask, bool is_causal) -> ()": extend_attention_cpu,
}

# Kept in a global: the ops vanish with their library object.
_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")
for _schema, _function in _OPS.items():
    _LIBRARY.define(_schema)
    _LIBRARY.impl(_schema.partition("(")[0], _function, "CPU")


class _Placeholder:
    """Importable, but not callable."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name} is not part of spec-toggle's reference engine")


def _placeholder_getattr(module: str) -> Any:
    def getattr_(name: str) -> _Placeholder:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _Placeholder(f"{module}.{name}")

    return getattr_


class _SubmoduleFinder(MetaPathFinder, Loader):
    """``sgl_kernel.scalar_type`` from the installed wheel; placeholders for other submodules."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname == f"{__name__}.scalar_type":
            return importlib.util.spec_from_file_location(fullname, _real_file("scalar_type.py"))
        if fullname.startswith(f"{__name__}."):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = _placeholder_getattr(module.__name__)


def _real_file(name: str) -> Path:
    """A plain-Python file of the real wheel, which cannot be imported as a package here."""
    for entry in sys.path:
        path = Path(entry).resolve()
        if path != _SHIM and (path / __name__ / name).is_file():
            return path / __name__ / name
    raise ImportError(
        f"sgl_kernel/{name} was not found on sys.path: the reference engine takes it from the "
        "sglang-kernel wheel. Install it: pip install sglang-kernel (or sglang, which needs it)"
    )


__getattr__ = _placeholder_getattr(__name__)
sys.meta_path.insert(0, _SubmoduleFinder())
