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

from spec_toggle import install, routes  # noqa: E402
from spec_toggle.accounting import CARRIER  # noqa: E402
from spec_toggle.hooks import FLAG_HOOKS, HTTP_HOOKS, REPORTER, TOGGLE_HOOKS, Hook  # noqa: E402

HOOKS = (*FLAG_HOOKS, *TOGGLE_HOOKS, *HTTP_HOOKS)
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


def test_orders_ride_on_a_control_request_that_ranks_get_in_one_broadcast() -> None:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    assert "server_args" in SetInternalStateReq.__struct_fields__, FIX
    receiver = pkgutil.resolve_name(
        "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
    )
    assert "broadcast_pyobj" in inspect.getsource(receiver._broadcast_reqs_across_ranks), FIX


def test_the_carrier_of_plain_tokens_reaches_clients_and_is_free_in_eagle() -> None:
    from sglang.srt.managers.io_struct import BatchStrOutput, BatchTokenIDOutput
    from sglang.srt.speculative import eagle_worker_v2

    for output in (BatchTokenIDOutput, BatchStrOutput):
        assert CARRIER in output.__struct_fields__, FIX
    processor = pkgutil.resolve_name(
        "sglang.srt.managers.scheduler_components.batch_result_processor"
    )
    assert f"{CARRIER} += block_accept_lens[i]" in inspect.getsource(processor), FIX
    assert "block_accept_lens" not in inspect.getsource(eagle_worker_v2), FIX


def test_the_decode_line_can_carry_the_mode() -> None:
    reporter = pkgutil.resolve_name(REPORTER)
    assert "{self._graph_backend_label}: " in inspect.getsource(reporter.report_decode_stats), FIX


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_steering_is_an_admin_endpoint_of_the_host(method: str) -> None:
    from fastapi import FastAPI
    from sglang.srt.utils.auth import (
        AuthLevel,
        _get_auth_level_from_app_and_scope,
        decide_request_auth,
    )

    app = FastAPI()
    routes.add_routes(app)
    scope = {"type": "http", "method": method, "path": routes.PATH, "headers": []}
    level = _get_auth_level_from_app_and_scope(app, scope)
    assert level is AuthLevel.ADMIN_OPTIONAL, FIX

    def is_allowed(given: str | None, api_key: str | None, admin_api_key: str | None) -> bool:
        return decide_request_auth(
            method=method,
            path=routes.PATH,
            authorization_header=given and f"Bearer {given}",
            api_key=api_key,
            admin_api_key=admin_api_key,
            auth_level=level,
        ).allowed

    assert is_allowed(None, None, None)
    assert is_allowed("user", "user", None) and not is_allowed(None, "user", None)
    assert is_allowed("admin", "user", "admin") and not is_allowed("user", "user", "admin")


def test_without_the_flag_nothing_is_patched() -> None:
    """In a process of its own: load the plugin as a server without the toggle does."""
    code = """
        import importlib, pkgutil, sys
        from tests.engine.harness import activate_reference_engine
        activate_reference_engine()
        from spec_toggle.hooks import HTTP_HOOKS, TOGGLE_HOOKS
        import sglang.srt.entrypoints.engine, sglang.srt.server_args
        before = {h.target: pkgutil.resolve_name(h.target) for h in (*TOGGLE_HOOKS, *HTTP_HOOKS)}
        from sglang.srt.plugins import load_plugins
        load_plugins()
        from sglang.srt.server_args import prepare_server_args
        args = prepare_server_args(["--model-path", "dummy"])
        assert args._dynamic_spec_config is None
        from sglang.srt.entrypoints.http_server import app
        assert not any(getattr(route, "path", "") == "/dynamic_spec" for route in app.routes)
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
