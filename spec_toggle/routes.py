"""``/dynamic_spec`` on SGLang's HTTP server: see and steer the toggle while it runs.

Both methods are admin endpoints of SGLang's level ADMIN_OPTIONAL, like ``/set_internal_state``,
which reaches the same settings: with ``--admin-api-key`` only that key opens them, else with
``--api-key`` that one does, and a server without keys leaves them open.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from spec_toggle.config import ConfigError, DynamicSpecConfig
from spec_toggle.state import KEY
from spec_toggle.steering import Force, Order, Steering

PATH = "/dynamic_spec"
WORKER_APP = "spec_toggle.worker_app:app"

# Tasks that end a force; the event loop itself keeps no strong reference to them.
_releases: set[asyncio.Task[None]] = set()


def serve(*_: Any, **__: Any) -> None:
    """Before the HTTP server starts: offer the endpoint in each process that will answer."""
    from sglang.srt.entrypoints.http_server import app

    add_routes(app)
    try:
        from sglang.srt.environ import envs
        from sglang.srt.runtime_context import get_serving
    except ImportError:
        return  # worker processes import the host's own application, whatever it is told
    if get_serving().tokenizer_worker_num > 1 and not envs.SGLANG_HTTP_SERVER_APP_PATH.is_set():
        # Worker processes import the application anew, and load no plugin.
        envs.SGLANG_HTTP_SERVER_APP_PATH.set(WORKER_APP)


def add_routes(app: Any) -> None:
    from sglang.srt.utils.auth import AuthLevel, auth_level

    as_admin = auth_level(AuthLevel.ADMIN_OPTIONAL)
    app.routes.append(Route(PATH, as_admin(read), methods=["GET"]))
    app.routes.append(Route(PATH, as_admin(steer), methods=["POST"]))


async def read(request: Request) -> Response:
    """The state of each data-parallel engine."""
    del request
    return JSONResponse({"engines": await _states()})


async def steer(request: Request) -> Response:
    """Apply an order to every engine; answers with the new state, or 400 and the reason."""
    try:
        order = Order.from_body(json.loads(await request.body() or b"null"), time.time())
        for state in await _states():
            config = DynamicSpecConfig(**state["config"])
            Steering(config, state["draft_syncs"]).apply(order)
    except ValueError as error:  # a ConfigError is one, and so is broken JSON
        return _refusal(400, str(error) if isinstance(error, ConfigError) else f"JSON: {error}")
    if not await _send(order):
        return _refusal(409, "the scheduler refused the change; its log has the reason.")
    if order.force is not None:
        task = asyncio.get_running_loop().create_task(_release_later(order.force))
        _releases.add(task)
        task.add_done_callback(_releases.discard)
    return JSONResponse({"engines": await _states()})


async def _release_later(force: Force) -> None:
    """End ``force`` when its time is over, unless another has taken its place by then."""
    await asyncio.sleep(max(0.0, force.until - time.time()))
    await _send(Order(release=force.until))


async def _send(order: Order) -> bool:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    request = SetInternalStateReq(server_args=order.to_wire())
    return all(await _tokenizer_manager().set_internal_state(request))


async def _states() -> list[dict[str, Any]]:
    return [state[KEY] for state in await _tokenizer_manager().get_internal_state()]


def _tokenizer_manager() -> Any:
    from sglang.srt.entrypoints.http_server import get_global_state

    return get_global_state().tokenizer_manager


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)
