"""Engines for the suites that step the real scheduler."""

from tests.engine.engines import encode, engines

__all__ = ["encode", "engines"]
