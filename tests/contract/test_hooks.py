"""The hook table against the installed SGLang, and the assumptions that the hooks rest on."""

import dataclasses
import inspect
import pkgutil
import subprocess
import sys
import textwrap

import pytest

from tests.engine.harness import activate_reference_engine

activate_reference_engine()

from spec_toggle import install  # noqa: E402
from spec_toggle.hooks import FLAG_HOOKS, TOGGLE_HOOKS, Hook  # noqa: E402

HOOKS = (*FLAG_HOOKS, *TOGGLE_HOOKS)
FIX = "this SGLang differs from 0.5.23 here: adapt the hook, or refuse the release"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.target.rsplit(".", 2)[-1])
def test_target_resolves_with_its_parameters(hook: Hook) -> None:
    assert install.find_problems([hook]) == [], FIX
    assert hook.why


def test_a_missing_target_and_a_missing_parameter_are_named() -> None:
    def nothing() -> None: ...

    problems = install.find_problems(
        [
            Hook("sglang.srt.managers.scheduler.Scheduler.no_such", "AROUND", nothing, "test"),
            Hook(
                "sglang.srt.managers.scheduler.Scheduler.run_batch", "AROUND", nothing, "t", ("x",)
            ),
        ]
    )
    assert "Scheduler.no_such is missing" in problems[0]
    assert "run_batch has no parameter 'x'" in problems[1]


def test_batch_fields_that_a_plain_step_replaces_exist() -> None:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    fields = {field.name for field in dataclasses.fields(ScheduleBatch)}
    used = {
        "spec_info",
        "spec_algorithm",
        "input_ids",
        "out_cache_loc",
        "seq_lens",
        "seq_lens_cpu",
        "seq_lens_sum",
        "req_pool_indices_cpu",
        "extend_lens",
        "prefix_lens",
        "extend_num_tokens",
        "extend_logprob_start_lens",
    }
    assert used <= fields, FIX


def test_what_the_profiler_builds_batches_from_exists() -> None:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.speculative.eagle_info import EagleDraftInput
    from sglang.srt.utils import broadcast_pyobj

    fields = {field.name for field in dataclasses.fields(ScheduleBatch)}
    assert {"forward_iter", "orig_seq_lens", "multimodal_inputs", "tree_cache"} <= fields, FIX
    draft = {field.name for field in dataclasses.fields(EagleDraftInput)}
    assert {"topk_p", "topk_index", "hidden_states", "bonus_tokens"} <= draft, FIX
    names = list(inspect.signature(Req.__init__).parameters)
    assert names[1:5] == ["rid", "origin_input_text", "origin_input_ids", "sampling_params"], FIX
    assert list(inspect.signature(broadcast_pyobj).parameters)[:4] == [
        "data",
        "rank",
        "dist_group",
        "src",
    ], FIX
    assert "overlap" in inspect.signature(Scheduler._forward_isolation).parameters, FIX
    assert "self.forward_ct += 1" in inspect.getsource(Scheduler.run_batch), FIX


def test_settings_that_a_profile_depends_on_exist() -> None:
    from sglang.srt.server_args import ServerArgs

    from spec_toggle.auto import SETTINGS

    assert [name for name in SETTINGS if name not in ServerArgs.__struct_fields__] == [], FIX


def test_result_fields_that_a_plain_step_fills_exist() -> None:
    from sglang.srt.managers.utils import GenerationBatchResult

    fields = {field.name for field in dataclasses.fields(GenerationBatchResult)}
    used = {"speculative_num_draft_tokens", "accept_lens", "new_seq_lens", "next_draft_input"}
    assert used <= fields, FIX


def test_draft_extend_reads_its_width_from_the_draft_worker() -> None:
    draft_worker = pkgutil.resolve_name(
        "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_decode"
    )
    assert "self.speculative_num_draft_tokens" in inspect.getsource(draft_worker), FIX


def test_the_scheduler_undoes_the_workers_edits() -> None:
    scheduler = pkgutil.resolve_name("sglang.srt.managers.scheduler.Scheduler")
    assert "_forward_isolation(batch" in inspect.getsource(scheduler.run_batch), FIX


def test_without_the_flag_nothing_is_patched() -> None:
    """In a process of its own: load the plugin as a server without the toggle does."""
    code = """
        import importlib, pkgutil, sys
        from tests.engine.harness import activate_reference_engine
        activate_reference_engine()
        from spec_toggle.hooks import TOGGLE_HOOKS
        import sglang.srt.entrypoints.engine, sglang.srt.server_args
        before = {h.target: pkgutil.resolve_name(h.target) for h in TOGGLE_HOOKS}
        from sglang.srt.plugins import load_plugins
        load_plugins()
        from sglang.srt.server_args import prepare_server_args
        args = prepare_server_args(["--model-path", "dummy"])
        assert args._dynamic_spec_config is None
        changed = [t for t, f in before.items() if pkgutil.resolve_name(t) is not f]
        assert not changed, changed
        import os
        assert "SPEC_TOGGLE_CONFIG" not in os.environ
        loaded = [m for m in sys.modules if m.startswith("spec_toggle")]
        assert "spec_toggle.worker" not in loaded and "spec_toggle.plain_step" not in loaded
        print("unpatched")
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert "unpatched" in ran.stdout, ran.stderr[-2000:]


def test_the_host_can_apply_one_hook_over_anothers() -> None:
    """Another plugin's hook on the same target must not keep ours out."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    class Target:
        def call(self) -> list[str]:
            return ["original"]

    module = sys.modules[__name__]
    setattr(module, "Target", Target)  # noqa: B010
    for name in ("first", "second"):
        handler = lambda original, self, tag=name: [tag, *original(self)]  # noqa: E731
        HookRegistry._apply_target(f"{__name__}.Target.call", [(HookType["AROUND"], handler, None)])
    assert Target().call() == ["second", "first", "original"], FIX
