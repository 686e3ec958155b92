"""SGLang's HTTP application as a tokenizer worker imports it (``--tokenizer-worker-num`` above 1).

Such a process loads no plugin, so importing this module installs what the toggle needs there.
"""

from __future__ import annotations

from sglang.srt.entrypoints.http_server import app

from spec_toggle.install import enable_toggle
from spec_toggle.routes import add_routes

__all__ = ["app"]

enable_toggle()
add_routes(app)
