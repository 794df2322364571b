"""Everything public says what it is: each parameter, field and error.

That there is a docstring at all, ruff sees, too (its rules D, in pyproject.toml), of every module;
here it is what ruff cannot see, of what docs/reference shows.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap

import pytest

import ringkern
from tests.docs import public
from tests.docs.public import Named

EVERYTHING = list(public.everything())
FUNCTIONS = [named for named in EVERYTHING if named.function]
CLASSES = [named for named in EVERYTHING if inspect.isclass(named.value)]


def names(named: object) -> str:
    return str(named)


def test_the_reference_is_found() -> None:
    shown = set(map(str, EVERYTHING))
    assert {"ringkern.ring_all_reduce", "ringkern.Communicator.abort"} <= shown
    assert {"ringkern.local.Ring.size", "ringkern.errors.PeerLostError"} <= shown


def test_nothing_public_is_left_out() -> None:
    """What ``from ringkern import *`` gives is in the reference: a module has a section."""
    assert {f"ringkern.{name}" for name in ringkern.__all__} <= set(map(str, EVERYTHING))


@pytest.mark.parametrize("named", EVERYTHING, ids=names)
def test_has_a_docstring(named: Named) -> None:
    assert named.text.strip(), f"{named} has no docstring"


_REFERS = r"\b(?:%s) :(?:func|class|meth):`~?([\w.]+)`"
FOR_ALL = "see|as|as for"  # as in "See :func:`ring_all_reduce`"
FOR_ERRORS = f"{FOR_ALL}|what"  # as in "what :func:`ring_all_reduce` raises"


def _texts(named: Named, words: str = FOR_ALL, seen: frozenset[str] = frozenset()) -> str:
    """Its docstring, and those that it refers to by such words."""
    text = named.text
    for name in set(re.findall(_REFERS % words, text, re.IGNORECASE)) - seen:
        for other in EVERYTHING:
            if str(other).endswith(f".{name}") or str(other) == name:
                text += "\n" + _texts(other, words, seen | {name})
    return text


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) is not None


@pytest.mark.parametrize("named", FUNCTIONS, ids=names)
def test_names_its_parameters(named: Named) -> None:
    text = _texts(named)
    parameters = [p for p in inspect.signature(named.function).parameters if p not in _SELF]
    missing = [p for p in parameters if not _mentions(text, p)]
    assert not missing, f"the docstring of {named} does not name {', '.join(missing)}"


_SELF = ("self", "cls")


@pytest.mark.parametrize("named", CLASSES, ids=names)
def test_names_its_fields(named: Named) -> None:
    fields = getattr(named.value, "_fields", ())  # of a NamedTuple
    if dataclasses.is_dataclass(named.value):
        fields = tuple(field.name for field in dataclasses.fields(named.value))
    elif "__init__" in vars(named.value) and not getattr(named.value, "_is_protocol", False):
        fields = tuple(p for p in inspect.signature(named.value.__init__).parameters)
    shown = [name for name in fields if not name.startswith("_") and name not in _SELF]
    missing = [name for name in shown if not _mentions(_texts(named), name)]
    assert not missing, f"the docstring of {named} does not name {', '.join(missing)}"


@pytest.mark.parametrize("named", FUNCTIONS, ids=names)
def test_names_what_it_raises(named: Named) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(named.function)))
    raised = {
        found.exc.func.id
        for found in ast.walk(tree)
        if isinstance(found, ast.Raise)
        and isinstance(found.exc, ast.Call)
        and isinstance(found.exc.func, ast.Name)
    }
    text = _texts(named, FOR_ERRORS)
    missing = [name for name in sorted(raised) if not _mentions(text, name)]
    assert not missing, f"the docstring of {named} does not name {', '.join(missing)}"


@pytest.mark.parametrize("named", FUNCTIONS, ids=names)
def test_says_what_it_returns(named: Named) -> None:
    """By ``Returns:``, or by a first line that is what it returns, and no verb."""
    annotation = inspect.signature(named.function).return_annotation
    if annotation in ("None", None, "NoReturn") or str(annotation).startswith("Iterator[None]"):
        return
    first = named.text.split()[0]
    verb = re.fullmatch(r"[A-Z][a-z]+s", first) and first not in ("As", "This")
    assert not verb or re.search(r"^(Returns|Yields):|; ", _texts(named), re.MULTILINE), (
        f"the docstring of {named} does not say what it returns"
    )
