"""Engines for the suites that step the real scheduler."""

from tests.engine.engines import encode, engines, wrong_forecasts

__all__ = ["encode", "engines", "wrong_forecasts"]
