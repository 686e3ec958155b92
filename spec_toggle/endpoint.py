"""The client side of ``/dynamic_spec``, with the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

PATH = "/dynamic_spec"
TIMEOUT_S = 30.0


class EndpointError(RuntimeError):
    """The server cannot be reached or said no; the message is one line, with the fix if known."""


class Endpoint:
    """``url``: of the server, e.g. ``http://127.0.0.1:30000``. ``api_key``: its admin's, if any."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise EndpointError(f"--url {url!r} is not a URL. Use e.g. http://127.0.0.1:30000.")
        self.url = url.rstrip("/")
        self._target = self.url + PATH
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def read(self) -> list[dict[str, Any]]:
        """The state of each data-parallel engine. Raises EndpointError."""
        return self._call(None)

    def steer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Send an order; returns the new states. Raises EndpointError with the server's reason."""
        return self._call(json.dumps(body).encode())

    def _call(self, data: bytes | None) -> list[dict[str, Any]]:
        request = urllib.request.Request(self._target, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                engines = list(json.load(response)["engines"])
            if not engines:
                raise ValueError("no engine")
            return engines
        except urllib.error.HTTPError as error:
            raise EndpointError(self._explain(error)) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", None) or error
            raise EndpointError(f"{self._target}: no usable answer ({reason}).") from None

    def _explain(self, error: urllib.error.HTTPError) -> str:
        if error.code in (401, 403):
            return f"{self._target}: not authorized. Give the server's admin key with --api-key."
        if error.code == 404:
            return f"{self._target}: not there. Was the server started with --enable-dynamic-spec?"
        try:
            return str(json.load(error)["error"]["message"])
        except (ValueError, KeyError, TypeError, OSError):
            return f"{self._target}: HTTP status {error.code}."
