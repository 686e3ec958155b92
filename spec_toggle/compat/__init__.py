"""Dealings with the host that differ between its releases, each by what the release has."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any


def has_argument(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters


def has_field(record: type, name: str) -> bool:
    """Whether a dataclass or Struct of the host has a field."""
    return name in _fields(record)


@functools.cache  # some records are built in every prefill
def _fields(record: type) -> frozenset[str]:
    if dataclasses.is_dataclass(record):
        return frozenset(field.name for field in dataclasses.fields(record))
    return frozenset(getattr(record, "__struct_fields__", ()))


def build(record: type, **fields: Any) -> Any:
    """An instance of ``record`` from those of ``fields`` that it has."""
    return record(**{name: value for name, value in fields.items() if has_field(record, name)})


@contextlib.contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of ``target`` for the duration of the block; restore them always."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
