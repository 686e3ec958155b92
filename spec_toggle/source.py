"""The Python source of an SGLang release, read from a folder or a wheel without importing it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGE = "sglang"


@dataclass(frozen=True)
class Definition:
    """A piece of a module's source; ``node`` None: defined outside of the release."""

    module: str
    node: ast.AST | None


class Source:
    """The source of one release. ``root``: the folder, or the wheel, that holds the package."""

    def __init__(self, root: Traversable) -> None:
        self._root = root
        self._found: dict[str, Definition | None] = {}

    def find(self, target: str) -> Definition | None:
        """The definition of a dotted name, through imports and base classes; None: missing."""
        if target not in self._found:
            self._found[target] = None  # for imports that lead back here
            head, _, name = target.rpartition(".")
            found = self._module(target)
            if found is None and head:
                owner = self.find(head)
                found = None if owner is None else self.member(owner, name)
            self._found[target] = found
        return self._found[target]

    def member(self, owner: Definition, name: str) -> Definition | None:
        """What ``name`` is in a module or class, or of an object that a module makes."""
        if isinstance(owner.node, ast.Assign):
            owner = self._class_of(owner)
        if owner.node is None:
            return owner
        for node in _statements(owner.node):
            if isinstance(node, ast.ImportFrom):
                if (found := self._imported(owner.module, node, name)) is not None:
                    return found
            elif name in _names(node):
                return Definition(owner.module, node)
        if isinstance(owner.node, ast.ClassDef):
            return self._of_instance(owner, name)
        return None

    def parameters(self, found: Definition) -> set[str]:
        """Names that a call may pass: of a function, or of a class's constructor or fields."""
        if isinstance(found.node, ast.ClassDef):
            for node in _statements(found.node):
                if "__init__" in _names(node):
                    return self.parameters(Definition(found.module, node))
            fields = {n for node in found.node.body if _is_field(node) for n in _names(node)}
            return fields.union(*map(self.parameters, self._bases(found)))
        if not isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return set()
        named = found.node.args
        return {a.arg for a in (*named.posonlyargs, *named.args, *named.kwonlyargs)}

    @staticmethod
    def takes_any_keyword(found: Definition) -> bool:
        return isinstance(found.node, ast.FunctionDef) and found.node.args.kwarg is not None

    def _module(self, name: str) -> Definition | None:
        *folders, last = name.split(".")
        folder = self._root.joinpath(*folders)
        for file in (folder.joinpath(last, "__init__.py"), folder.joinpath(f"{last}.py")):
            if file.is_file():
                return Definition(name, ast.parse(file.read_text(encoding="utf-8")))
        return None

    def _imported(self, module: str, node: ast.ImportFrom, name: str) -> Definition | None:
        """What ``name`` is if this import of ``module`` binds it."""
        bound = {alias.asname or alias.name: alias.name for alias in node.names}
        if name not in bound and "*" not in bound:
            return None
        origin = node.module or ""
        if node.level:
            is_package = self._root.joinpath(*module.split("."), "__init__.py").is_file()
            package = module.split(".")
            package = package[: len(package) - node.level + is_package]
            origin = ".".join((*package, origin)).rstrip(".")
        if origin.split(".")[0] != PACKAGE:
            return None if "*" in bound else Definition(origin, None)
        return self.find(f"{origin}.{bound.get(name, name)}")

    def _of_instance(self, owner: Definition, name: str) -> Definition | None:
        """An attribute that a method assigns to ``self``, or one of a base class."""
        assert owner.node is not None
        for node in ast.walk(owner.node):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
                if is_self and node.attr == name:
                    return Definition(owner.module, node)
        found = (self.member(base, name) for base in self._bases(owner))
        return next((f for f in found if f is not None), None)

    def _class_of(self, owner: Definition) -> Definition:
        """The class that an assigned call makes an instance of."""
        assert isinstance(owner.node, ast.Assign)
        value = owner.node.value
        name = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        found = self.find(f"{owner.module}.{name}") if name else None
        is_class = found is not None and isinstance(found.node, ast.ClassDef)
        return found if found is not None and is_class else Definition(owner.module, None)

    def _bases(self, owner: Definition) -> Iterator[Definition]:
        """Base classes that the release defines."""
        assert isinstance(owner.node, ast.ClassDef)
        for base in owner.node.bases:
            found = self.find(f"{owner.module}.{ast.unparse(base)}")
            if found is not None and isinstance(found.node, ast.ClassDef):
                yield found


def installed_source() -> Source:
    """The SGLang of this environment. Raises ModuleNotFoundError if there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("SGLang is not installed in this environment.")
    return Source(Path(spec.origin).parent.parent)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module or class, also those in branches of ``if``, ``try``, ``with``."""
    for field in ("body", "orelse", "handlers", "finalbody"):
        for node in getattr(scope, field, ()):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from _statements(ast.Module(node.orelse, []))
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _statements(node)
            else:
                yield node


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
    return [leaf.id for t in targets for leaf in ast.walk(t) if isinstance(leaf, ast.Name)]


def _is_field(node: ast.stmt) -> bool:
    """Whether a class statement declares a field of a dataclass or Struct."""
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
