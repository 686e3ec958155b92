"""The hooks on the installed SGLang: whether they can be put there, and when they are not."""

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
from spec_toggle.assumptions import HOOKS  # noqa: E402
from spec_toggle.hooks import REPORTER, Hook  # noqa: E402
from spec_toggle.source import installed_source  # noqa: E402

FIX = "this SGLang differs from 0.5.23 here: adapt the hook, or refuse the release"


HERE = [h for h in HOOKS if h.where is None or h.where.holds(installed_source())]


@pytest.mark.parametrize("hook", HERE, ids=lambda hook: hook.target.rsplit(".", 2)[-1])
def test_target_can_be_imported(hook: Hook) -> None:
    assert install.missing_targets([hook]) == [], FIX
    assert hook.why


def test_the_installed_source_holds_the_contract() -> None:
    assert install.contract_problems() == (), FIX


def test_a_target_that_cannot_be_imported_is_named() -> None:
    def nothing() -> None: ...

    hook = Hook("sglang.srt.managers.scheduler.Scheduler.no_such", "AROUND", nothing, "test")
    (problem,) = install.missing_targets([hook])
    assert "Scheduler.no_such is missing" in problem


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
        from spec_toggle.source import installed_source
        source = installed_source()
        hooks = [
            h for h in (*TOGGLE_HOOKS, *HTTP_HOOKS) if h.where is None or h.where.holds(source)
        ]
        import sglang.srt.entrypoints.engine, sglang.srt.server_args
        before = {h.target: pkgutil.resolve_name(h.target) for h in hooks}
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
