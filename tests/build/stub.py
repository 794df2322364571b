"""Compares a typed stub with the extension that it describes: names, arguments, defaults, types.

pybind11 puts the signature of each function into its docstring, in the syntax of Python. mypy's own
comparison, stubtest, does not look there, and so compares names alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, WrapperDescriptorType
from typing import Any

# Members that pybind11 and Python add to every module and class.
FURNITURE = re.compile(r"__(?!init__)\w+__|_pybind11_conduit_v1_")
ANY = "Any"


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str  # "/", "" or "*": by position, by either, by name
    default: str | None
    type: str


@dataclass(frozen=True)
class Signature:
    arguments: tuple[Argument, ...]
    returns: str

    def __str__(self) -> str:
        said = [
            f"{a.kind}{a.name}: {a.type}" + (f" = {a.default}" if a.default is not None else "")
            for a in self.arguments
        ]
        return f"({', '.join(said)}) -> {self.returns}"


# ---- types, in one spelling ---------------------------------------------------------------------

# pybind11 accepts objects convertible to int or float; the stub has int and float.
NUMBERS = {
    frozenset({"SupportsInt", "SupportsIndex"}): "int",
    frozenset({"SupportsFloat", "SupportsIndex"}): "float",
}
SPELLINGS = {"Sequence": "list", "Mapping": "dict", "object": ANY, "RedOpType": "ReduceOp"}


def spelling(node: ast.expr | None, aliases: dict[str, ast.expr]) -> str:
    """Returns a type without modules, with one name for equivalent types of an argument."""
    if node is None:
        return ANY
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return spelling(ast.parse(node.value, mode="eval").body, aliases)
    if isinstance(node, ast.Name) and node.id in aliases:
        return spelling(aliases[node.id], aliases)
    if isinstance(node, ast.Subscript):
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name = spelling(node.value, aliases)
        return f"{name}[{', '.join(spelling(element, aliases) for element in inside)}]"
    if isinstance(node, ast.BinOp):
        parts = set(_union(node, aliases))
        if number := NUMBERS.get(frozenset(parts)):
            return number
        return " | ".join(sorted(parts))
    if isinstance(node, ast.List):
        return f"[{', '.join(spelling(element, aliases) for element in node.elts)}]"
    if isinstance(node, ast.Constant):
        return repr(node.value) if node.value is not ... else "..."
    name = ast.unparse(node).rpartition(".")[2]
    return SPELLINGS.get(name, name)


def _union(node: ast.expr, aliases: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(node, ast.BinOp):
        yield from _union(node.left, aliases)
        yield from _union(node.right, aliases)
    else:
        yield spelling(node, aliases)


def fits(stub: str, built: str) -> bool:
    """Returns whether the stub's type can stand for the extension's, which is less precise for
    some.
    """
    if ANY in (stub, built) or stub == built:
        return True
    if built in ("list", "dict", "tuple"):
        return stub.startswith(f"{built}[")
    return set(stub.split(" | ")) == {built, "None"}  # a pointer, which C++ may leave empty


# ---- signatures ---------------------------------------------------------------------------------


def signature(definition: ast.FunctionDef, aliases: dict[str, ast.expr]) -> Signature:
    given = definition.args
    by_place = [*given.posonlyargs, *given.args]
    absent = len(by_place) - len(given.defaults)
    defaults = [None] * absent + [ast.unparse(default) for default in given.defaults]
    arguments = [
        Argument(arg.arg, "/" if place < len(given.posonlyargs) else "", default, "")
        for place, (arg, default) in enumerate(zip(by_place, defaults))
    ]
    arguments += [
        Argument(arg.arg, "*", ast.unparse(default) if default else None, "")
        for arg, default in zip(given.kwonlyargs, given.kw_defaults)
    ]
    types = [spelling(arg.annotation, aliases) for arg in [*by_place, *given.kwonlyargs]]
    return Signature(
        tuple(Argument(a.name, a.kind, a.default, type_) for a, type_ in zip(arguments, types)),
        spelling(definition.returns, aliases),
    )


def built_signatures(name: str, documented: str) -> list[Signature]:
    """Returns the signature of each overload, from the docstring that pybind11 wrote; none without
    one.
    """
    lines = re.findall(rf"^(?:\d+\. )?{re.escape(name)}(\(.*\) -> .*)$", documented, re.MULTILINE)
    found = []
    for line in lines:
        # A default that has no literal is shown as <...>, and a type that Python did not know yet
        # when this function was bound by its name in C++.
        text = re.sub(r"\w+(::\w+)+", ANY, re.sub("<[^<>]*>", "...", line))
        (definition,) = ast.parse(f"def f{text}: ...").body
        assert isinstance(definition, ast.FunctionDef)
        if not definition.args.vararg:  # the line above the overloads: name(*args, **kwargs)
            found.append(signature(definition, {}))
    return found


def differences(stub: Signature, built: Signature) -> Iterator[str]:
    """Returns the differences that a caller would see, in words."""
    mine = [a for a in stub.arguments if a.name != "self"]
    theirs = [a for a in built.arguments if a.name != "self"]
    if len(mine) != len(theirs):
        yield f"the stub has {stub}, the extension {built}"
        return
    for a, b in zip(mine, theirs):
        if a.name != b.name or a.kind != b.kind:
            yield f"the stub takes {a.kind}{a.name} where the extension takes {b.kind}{b.name}"
        elif (a.default is None) != (b.default is None):
            yield f"argument {a.name} has a default in one of them only"
        elif a.default not in (b.default, "..."):
            yield f"argument {a.name} is {a.default} in the stub, {b.default} in the extension"
        elif not fits(a.type, b.type):
            yield f"argument {a.name} is {a.type} in the stub, {b.type} in the extension"
    if not fits(stub.returns, built.returns):
        yield f"the stub returns {stub.returns}, the extension {built.returns}"


# ---- modules and classes ------------------------------------------------------------------------


def _entries(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Returns the stub's statements by the name that they define; overloads have several."""
    entries: dict[str, list[ast.stmt]] = {}
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            entries.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.AnnAssign):
            entries.setdefault(ast.unparse(statement.target), []).append(statement)
    return entries


def _kind_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.ClassDef):
        return "a class"
    if isinstance(statement, ast.AnnAssign):
        return "a value"
    assert isinstance(statement, ast.FunctionDef)
    decorators = {ast.unparse(decorator) for decorator in statement.decorator_list}
    return "a property" if "property" in decorators else "a function"


def _kind(value: object) -> str:
    if isinstance(value, type):
        return "a class"
    if type(value).__name__ == "pybind11_static_property":
        return "a value"
    if isinstance(value, property):
        return "a property"
    return "a function" if callable(value) else "a value"


def compare(stub: str, module: ModuleType) -> Iterator[str]:
    """Yields each difference between a stub's text and the module, as "name: what"."""
    tree = ast.parse(stub)
    aliases = {
        ast.unparse(statement.targets[0]): statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
    }
    yield from _compare(_entries(tree.body), vars(module), aliases, "")


def _compare(
    stub: dict[str, list[ast.stmt]],
    built: Any,  # vars() of a module or class
    aliases: dict[str, ast.expr],
    prefix: str,
) -> Iterator[str]:
    # pybind11 gives a class without a constructor a slot that throws.
    slots = {name for name, value in built.items() if isinstance(value, WrapperDescriptorType)}
    names = {name for name in built if not FURNITURE.fullmatch(name)} - slots
    for name in sorted(names - set(stub)):
        yield f"{prefix}{name}: the stub has none"
    for name in sorted(set(stub) - names):
        yield f"{prefix}{name}: the extension has none"
    for name in sorted(names & set(stub)):
        here, value, statements = f"{prefix}{name}", built[name], stub[name]
        kind = _kind(value)
        if {kind} != set(map(_kind_of, statements)):
            yield f"{here}: {kind} in the extension, {_kind_of(statements[0])} in the stub"
        elif kind == "a class":
            (statement,) = statements
            assert isinstance(statement, ast.ClassDef)
            yield from _compare(_entries(statement.body), vars(value), aliases, f"{here}.")
        elif kind != "a value":
            documented = value.fget.__doc__ if kind == "a property" else value.__doc__
            found = built_signatures("" if kind == "a property" else name, documented or "")
            stated = [signature(s, aliases) for s in statements if isinstance(s, ast.FunctionDef)]
            if not found:
                yield f"{here}: the extension does not say what it takes"
            elif len(found) != len(stated):
                yield f"{here}: {len(found)} overloads in the extension, {len(stated)} in the stub"
            elif kind == "a property":
                if not fits(stated[0].returns, found[0].returns):
                    yield f"{here}: {stated[0].returns} in the stub, {found[0].returns} built"
            else:
                for one, other in zip(stated, found):
                    yield from (f"{here}: {what}" for what in differences(one, other))
