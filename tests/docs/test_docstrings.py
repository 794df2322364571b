"""Docstrings of all that docs/reference shows name each parameter, field and error.

ruff (its rules D, in pyproject.toml) sees that there is a docstring, and none of this.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable

import ringkern
from tests.docs import public
from tests.docs.public import Named

EVERYTHING = list(public.everything())
FUNCTIONS = [named for named in EVERYTHING if named.function]
CLASSES = [named for named in EVERYTHING if inspect.isclass(named.value)]


def test_nothing_public_is_left_out() -> None:
    """Finds in the reference all that ``from ringkern import *`` gives: a module has a section."""
    shown = set(map(str, EVERYTHING))
    assert {f"ringkern.{name}" for name in ringkern.__all__} <= shown
    assert {"ringkern.Communicator.abort", "ringkern.local.Ring.size"} <= shown


def test_all_have_docstrings() -> None:
    assert [str(named) for named in EVERYTHING if not named.text.strip()] == []


_REFERS = r"\b(?:%s) :(?:func|class|meth):`~?([\w.]+)`"
FOR_ALL = "see|as|as for"  # as in "See :func:`ring_all_reduce`"
FOR_ERRORS = f"{FOR_ALL}|what"  # as in "what :func:`ring_all_reduce` raises"


def _texts(named: Named, words: str = FOR_ALL, seen: frozenset[str] = frozenset()) -> str:
    """Returns a docstring, and those that it refers to by such words."""
    text = named.text
    for name in set(re.findall(_REFERS % words, text, re.IGNORECASE)) - seen:
        for other in EVERYTHING:
            if str(other).endswith(f".{name}") or str(other) == name:
                text += "\n" + _texts(other, words, seen | {name})
    return text


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) is not None


def _missing(named: Named, words: Iterable[str], references: str = FOR_ALL) -> list[str]:
    """Returns a line for the words that a docstring does not name, or nothing."""
    text = _texts(named, references)
    missing = [word for word in words if not _mentions(text, word)]
    return [f"{named}: {', '.join(missing)}"] if missing else []


_SELF = ("self", "cls")


def _parameters(named: Named) -> list[str]:
    return [name for name in inspect.signature(named.function).parameters if name not in _SELF]


def _fields(named: Named) -> list[str]:
    fields = getattr(named.value, "_fields", ())  # of a NamedTuple
    if dataclasses.is_dataclass(named.value):
        fields = tuple(field.name for field in dataclasses.fields(named.value))
    elif "__init__" in vars(named.value) and not getattr(named.value, "_is_protocol", False):
        fields = tuple(p for p in inspect.signature(named.value.__init__).parameters)
    return [name for name in fields if not name.startswith("_") and name not in _SELF]


def _raised(named: Named) -> list[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(named.function)))
    raised = {
        found.exc.func.id
        for found in ast.walk(tree)
        if isinstance(found, ast.Raise)
        and isinstance(found.exc, ast.Call)
        and isinstance(found.exc.func, ast.Name)
    }
    return sorted(raised)


def test_docstrings_name_parameters_fields_and_errors() -> None:
    assert len(FUNCTIONS) > 50
    missing = [line for named in FUNCTIONS for line in _missing(named, _parameters(named))]
    missing += [line for named in CLASSES for line in _missing(named, _fields(named))]
    for named in FUNCTIONS:
        missing += _missing(named, _raised(named), FOR_ERRORS)
    assert not missing, "docstrings do not name:\n" + "\n".join(missing)


def _says_what_it_returns(named: Named) -> bool:
    """Looks for ``Returns:``, or a first line that is the result or begins with "Returns"."""
    annotation = inspect.signature(named.function).return_annotation
    if annotation in ("None", None, "NoReturn") or str(annotation).startswith("Iterator[None]"):
        return True
    first = named.text.split()[0]
    verb = re.fullmatch(r"[A-Z][a-z]+s", first) and first not in ("Returns", "This")
    pattern = r"^(Returns|Yields):|; "
    return not verb or re.search(pattern, _texts(named), re.MULTILINE) is not None


def test_docstrings_say_what_is_returned() -> None:
    assert [str(named) for named in FUNCTIONS if not _says_what_it_returns(named)] == []
