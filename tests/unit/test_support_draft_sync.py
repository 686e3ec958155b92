"""Caches that copy KV out do not go with a draft sync that writes it later."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spec_toggle.config import ConfigError
from spec_toggle.support import check_draft_sync


@pytest.mark.parametrize("field", ["enable_hierarchical_cache", "enable_lmcache"])
@pytest.mark.parametrize("sync", ["deferred", "off"])
def test_a_copying_cache_needs_eager_sync(field: str, sync: str) -> None:
    settings = SimpleNamespace(**{field: True})
    flag = "--" + field.replace("_", "-")
    with pytest.raises(ConfigError, match=f"{sync}.*{flag}.*--dynamic-spec-draft-sync eager"):
        check_draft_sync(settings, sync)
    check_draft_sync(settings, "eager")
    check_draft_sync(SimpleNamespace(), sync)
