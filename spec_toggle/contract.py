"""Whether a release of SGLang holds what is required of it, found in its source."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from spec_toggle.source import PACKAGE, Source


@dataclass(frozen=True)
class Requirement:
    """A module, class, function or constant of the host that must exist, and what it must hold.

    ``kind``: a hook's kind, ``uses`` or ``relies on``; for display.
    ``parameters``: of the function, or of the class's constructor.
    ``attributes``: of the class: fields, methods, and what its methods assign to ``self``.
    ``contains``: code in the definition, spelled as ``ast.unparse`` spells it.
    """

    target: str
    why: str
    kind: str = "relies on"
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()


def differences(source: Source, requirement: Requirement) -> list[str]:
    """What the release lacks of one requirement, a phrase each; empty if it is met."""
    target = requirement.target
    found = source.find(target)
    if found is None:
        return [f"{target} is missing"]
    if found.node is None:
        return []  # another project's
    lacks = []
    if requirement.parameters and not source.takes_any_keyword(found):
        known = source.parameters(found)
        lacks += [f"no parameter {name!r}" for name in requirement.parameters if name not in known]
    lacks += [
        f"no attribute {name!r}"
        for name in requirement.attributes
        if source.member(found, name) is None
    ]
    text = ast.unparse(found.node) if requirement.contains else ""
    lacks += [f"no code {code!r}" for code in requirement.contains if code not in text]
    return [f"{target} has {lack}" for lack in lacks]


def lacking(source: Source, requirements: Iterable[Requirement]) -> dict[str, list[str]]:
    """The requirements that a release does not meet: what it lacks, by target."""
    return {r.target: lacks for r in requirements if (lacks := differences(source, r))}


def uses_of_host(module: str, text: str) -> list[Requirement]:
    """What a module of ours takes from the host, read from its own source ``text``.

    Names that it imports from the host, attributes that it reads of them, and keywords that it
    passes to them.
    """
    tree = ast.parse(text)
    targets = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE
        for alias in node.names
    }
    attributes: dict[str, set[str]] = {target: set() for target in targets.values()}
    parameters: dict[str, set[str]] = {target: set() for target in targets.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            attributes.get(targets.get(node.value.id, ""), set()).add(node.attr)
        if isinstance(node, ast.Call):
            name, _, attribute = ast.unparse(node.func).partition(".")
            if name in targets:
                called = f"{targets[name]}.{attribute}".rstrip(".")
                keywords = {keyword.arg for keyword in node.keywords if keyword.arg}
                parameters.setdefault(called, set()).update(keywords)
    why = f"used by {module}"
    return [
        Requirement(
            target, why, "uses", tuple(sorted(names)), tuple(sorted(attributes.get(target, ())))
        )
        for target, names in sorted(parameters.items())
        if target in attributes or names
    ]


def merged(requirements: Iterable[Requirement]) -> list[Requirement]:
    """One requirement for each target, however many modules and tables name it."""
    unique: dict[str, Requirement] = {}
    for new in requirements:
        old = unique.setdefault(new.target, new)
        unique[new.target] = dataclasses.replace(
            old,
            why=old.why if new.why in old.why else f"{old.why}; {new.why}",
            parameters=_union(old.parameters, new.parameters),
            attributes=_union(old.attributes, new.attributes),
            contains=_union(old.contains, new.contains),
        )
    return list(unique.values())


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
