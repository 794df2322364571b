"""Builds dataclasses from parsed JSON, and checks each value by its annotation.

>>> from dataclasses import dataclass
>>> @dataclass
... class Entry:
...     bytes: int
>>> build(tuple[Entry, ...], [{"bytes": 8}, {"bytes": "8"}], "sizes.json")
Traceback (most recent call last):
ValueError: sizes.json: [1].bytes is '8'; accepted: a whole number

An annotation is a dataclass, ``int``, ``float``, ``str``, ``bool``, ``None``, a ``Literal``, a
union, a tuple, ``dict[str, T]`` or ``Annotated[T, Within(...)]``. Needs no torch.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import reprlib
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


@dataclass(frozen=True)
class Within:
    """Limits of a number, both included; or of the length of a list or of a printable text."""

    least: float
    most: float

    def holds(self, value: Any) -> bool:
        """Returns whether a value is within the limits."""
        size = len(value) if isinstance(value, (str, tuple)) else value
        return self.least <= size <= self.most and (size is value or str(value).isprintable())


class _Wrong(ValueError):
    """A value that is not accepted; each level of the JSON puts its part before ``path``."""

    path = ""


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()


def load(text: str | bytes, where: str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: the text is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}") from None


def build(kind: Any, value: object, where: str) -> Any:
    """Builds a ``kind`` from parsed JSON.

    Raises:
        ValueError: a value is not as annotated, missing or unknown. The text has ``where``, the
            path of the value, the value, and what is accepted.
    """
    try:
        return _reader(kind)(value)
    except _Wrong as wrong:
        path = wrong.path.removeprefix(".")
        raise ValueError(f"{where}: {path} {wrong}" if path else f"{where} {wrong}") from None


def read(kind: Any, text: str | bytes, where: str) -> Any:
    """Builds a ``kind`` from JSON.

    Raises:
        ValueError: see :func:`load` and :func:`build`.
    """
    return build(kind, load(text, where), where)


def _accepted(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        what = " characters" if args[0] is str else " entries" if get_origin(args[0]) else ""
        return f"{_accepted(args[0])}, {args[1].least:.15g} to {args[1].most:.15g}{what}"
    if origin in (Union, types.UnionType, Literal):
        return " or ".join(repr(a) if origin is Literal else _accepted(a) for a in args)
    if origin is tuple:
        return "a list" if args[-1] is ... else f"a list of {len(args)}"
    return _WORDS.get(kind) or ("null" if kind is type(None) else "an object")


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Returns the function that checks a value and converts it to ``kind``."""
    origin, args = get_origin(kind), get_args(kind)

    def need(good: bool, value: object) -> None:
        if not good:
            raise _Wrong(f"is {reprlib.repr(value)}; accepted: {_accepted(kind)}")

    def each(readers: list[Any], names: Iterable[Any], values: Iterable[Any], at: str) -> list[Any]:
        found = []
        for read, name, value in zip(readers, names, values):
            try:
                found.append(read(value))
            except _Wrong as wrong:
                wrong.path = at.format(name) + wrong.path
                raise
        return found

    def record(value: Any) -> Any:
        need(isinstance(value, dict), value)
        found = each(inner, hints, [value.get(name, _MISSING) for name in hints], ".{}")
        if unknown := sorted(value.keys() - hints.keys()):
            raise _Wrong(f"has {reprlib.repr(unknown)}; accepted: {', '.join(hints)}")
        return kind(*found)

    def listed(value: Any) -> tuple[Any, ...]:
        many = args[-1] is ...
        need(isinstance(value, list) and (many or len(value) == len(args)), value)
        return tuple(
            each(inner[:1] * len(value) if many else inner, itertools.count(), value, "[{}]")
        )

    def mapped(value: Any) -> dict[str, Any]:
        need(isinstance(value, dict), value)
        return dict(zip(value, each(inner[1:] * len(value), value, value.values(), "[{!r}]")))

    def either(value: Any) -> Any:
        for read in inner:
            try:
                return read(value)
            except _Wrong:
                continue
        return need(False, value)

    def limited(value: Any) -> Any:
        found = inner[0](value)
        need(args[1].holds(found), value)
        return found

    def scalar(value: Any) -> Any:
        if kind is not float:
            need(type(value) is kind, value)
            return value
        need(type(value) in (int, float) and math.isfinite(value), value)
        return float(value)

    def literal(value: Any) -> Any:
        need(any(type(value) is type(one) and value == one for one in args), value)
        return value

    if is_dataclass(kind):
        every = get_type_hints(kind, include_extras=True)
        hints = {field.name: every[field.name] for field in fields(kind)}
        inner = [_reader(hint) for hint in hints.values()]
        return record
    inner = [_reader(one) for one in (args[:1] if origin is Annotated else args)]
    readers = {tuple: listed, dict: mapped, Annotated: limited, Literal: literal}
    return readers.get(origin) or (either if origin in (Union, types.UnionType) else scalar)
