"""Wheels for the contract suite: a machine that cannot get one fails with a single reason."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from spec_toggle import releases


@functools.cache
def _try_to_fetch(release: str) -> Path | str:
    try:
        return releases.wheel(release)
    except releases.FetchError as error:
        return str(error)


def fetched(release: str) -> Path:
    """The wheel of a release. Fails the test, without a traceback, if it cannot be had."""
    path = _try_to_fetch(release)
    if isinstance(path, str):
        pytest.fail(
            f"{path}. These tests need {releases.PACKAGE} wheels: connect once, they are cached.",
            pytrace=False,
        )
    return path
