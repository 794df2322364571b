"""The public names: those that docs/reference lists."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from tests.docs.blocks import ROOT
from tests.docs.extensions import made_from_code

REFERENCE = ROOT / "docs" / "reference"

_LISTED = re.compile(r"^\.\. automodule:: (\S+)\n((?: +:\S+:.*\n)*)", re.MULTILINE)

_ALONE = re.compile(r"^\.\. auto(?:function|class|exception):: ([\w.]+)\.(\w+)$", re.MULTILINE)
NONE = ""  # of its members


@dataclass(frozen=True)
class Named:
    """A public thing, and the name under which it is known."""

    name: str
    value: Any
    owner: type | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        """Returns its own docstring: not one that Python made, nor that of a foreign class."""
        found = getattr(self.value, "__doc__", None) or ""
        made = f"{getattr(self.value, '__name__', '')}(", "Alias for field number"
        return "" if found.startswith(made) else inspect.cleandoc(found)

    @cached_property
    def function(self) -> Any:
        """Returns the function behind a name; None if it is not a function."""
        value = self.value.__func__ if isinstance(self.value, _BOUND) else self.value
        return value if inspect.isfunction(value) else None


_BOUND = (classmethod, staticmethod)


@functools.cache
def listed() -> dict[str, list[str]]:
    """Returns, by module, the members that a page names; empty where it shows all of them."""
    pages = "".join(
        made_from_code.filled(page.read_text()) for page in sorted(REFERENCE.glob("*.md"))
    )
    found: dict[str, list[str]] = {}
    for name, options in _LISTED.findall(pages):
        members = re.search(r":members:(.*)", options)
        found[name] = re.findall(r"\w+", members[1]) if members else [NONE]
    for module, name in _ALONE.findall(pages):
        found.setdefault(module, [NONE]).append(name)
    return found


def modules() -> list[ModuleType]:
    """Returns the modules that the reference shows."""
    return [importlib.import_module(name) for name in listed()]


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module, without modules within it."""
    chosen = listed()[module.__name__] or getattr(module, "__all__", None) or _own(module)
    return [name for name in chosen if name and not inspect.ismodule(getattr(module, name))]


def _own(module: ModuleType) -> list[str]:
    """Classes and functions that were made there."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def everything() -> Iterator[Named]:
    """Modules, and the functions, classes, methods and properties in them."""
    for module in modules():
        yield Named(module.__name__, module)
        for name in names_of(module):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                yield Named(f"{module.__name__}.{name}", value)
            if inspect.isclass(value):
                yield from _members(f"{module.__name__}.{name}", value)


def _members(prefix: str, owner: type) -> Iterator[Named]:
    for name, value in vars(owner).items():
        plain = inspect.isfunction(value) or isinstance(value, (property, *_BOUND))
        if plain and not name.startswith("_"):
            yield Named(f"{prefix}.{name}", value, owner)
