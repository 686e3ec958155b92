"""Whether a release of SGLang holds what is required of it, found in its source."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from spec_toggle.source import PACKAGE, Source


@dataclass(frozen=True)
class Where:
    """The releases that something is for: those that have ``target``, or those that lack it."""

    target: str
    exists: bool

    def holds(self, source: Source) -> bool:
        return (source.find(self.target) is not None) is self.exists


# The two generations of the host: what its scheduler hands to a worker. Up to 0.5.12 it is a
# ``ModelWorkerBatch`` made for the iteration, later the ``ScheduleBatch`` itself.
WORKER_BATCH = Where("sglang.srt.managers.schedule_batch.ModelWorkerBatch", exists=True)
SCHEDULE_BATCH = Where(WORKER_BATCH.target, exists=False)


@dataclass(frozen=True)
class Requirement:
    """A module, class, function or constant of the host that must exist, and what it must hold.

    ``kind``: a hook's kind, ``uses`` or ``relies on``; for display.
    ``parameters``: of the function, or of the class's constructor.
    ``attributes``: of the class: fields, methods, and what its methods assign to ``self``.
    ``contains``: code in the definition, spelled as ``ast.unparse`` spells it.
    ``where``: the releases that must meet it; None: all.
    """

    target: str
    why: str
    kind: str = "relies on"
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    where: Where | None = None


def names(text: str) -> tuple[str, ...]:
    """The words of ``text``."""
    return tuple(text.split())


def needed(source: Source, requirements: Iterable[Requirement]) -> list[Requirement]:
    """What a release must meet, one requirement for each target."""
    return merged(
        dataclasses.replace(r, where=None)
        for r in requirements
        if r.where is None or r.where.holds(source)
    )


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


def uses_of_host(module: str, text: str, where: Where | None = None) -> list[Requirement]:
    """What a module of ours takes from the host, read from its own source ``text``.

    Names that it imports from the host, attributes that it reads of them, and keywords that it
    passes to them. An import that is tried is for releases of the newer generation, one in its
    ``except ImportError`` for those of the older. ``where``: of everything else.
    """
    tree = ast.parse(text)
    uses: list[Requirement] = []
    for name, target, generation in _imports(tree, where):
        attributes, calls = _reads_and_calls(tree, name)
        why, given = f"used by {module}", tuple(sorted(calls.pop("", set())))
        uses.append(
            Requirement(target, why, "uses", given, tuple(sorted(attributes)), where=generation)
        )
        uses += [
            Requirement(f"{target}.{method}", why, "uses", tuple(sorted(names)), where=generation)
            for method, names in sorted(calls.items())
            if names
        ]
    return uses


def _reads_and_calls(tree: ast.Module, name: str) -> tuple[set[str], dict[str, set[str]]]:
    """Attributes read of ``name``, and the keywords of calls to it ("") and to its attributes."""
    attributes: set[str] = set()
    calls: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name:
            attributes.add(node.attr)
        if isinstance(node, ast.Call):
            called, _, attribute = ast.unparse(node.func).partition(".")
            if called == name:
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                calls.setdefault(attribute, set()).update(given)
    return attributes, calls


def _imports(tree: ast.AST, where: Where | None) -> list[tuple[str, str, Where | None]]:
    """The host's names that are bound: the name, what it is, and the releases that need it."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            found += [(a.asname or a.name, f"{node.module}.{a.name}", where) for a in node.names]
        elif isinstance(node, ast.Try) and any(_is_import_error(h) for h in node.handlers):
            for child in node.body:
                found += _imports(ast.Module([child], []), SCHEDULE_BATCH)
            for handler in node.handlers:
                found += _imports(handler, WORKER_BATCH)
        else:
            found += _imports(node, where)
    return found


def _is_import_error(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.type, ast.Name) and handler.type.id == "ImportError"


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
