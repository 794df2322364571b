"""The tree of the exceptions, from the classes and their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from ringkern import errors


def classes() -> list[type[errors.RingKernError]]:
    """Returns the base class, and all others in the order of their source."""
    found = [value for value in vars(errors).values() if inspect.isclass(value)]
    return [kind for kind in found if issubclass(kind, errors.RingKernError)]


def tree() -> str:
    """Returns each class below its base, with its first line; then autodoc's sections."""
    shown = [f".. autoexception:: ringkern.errors.{kind.__name__}" for kind in classes()]
    return "\n".join(
        [
            *_lines(errors.RingKernError, 0),
            "",
            "```{eval-rst}",
            ".. py:module:: ringkern.errors",
            "",
            *shown,
            "```",
        ]
    )


def _lines(kind: type, depth: int) -> Iterator[str]:
    others = [base.__name__ for base in kind.__bases__ if base not in classes()]
    also = f" (also a `{'`, `'.join(others)}`)" if others else ""
    summary = (kind.__doc__ or "").splitlines()[0]
    yield f"{'  ' * depth}- {{py:exc}}`~ringkern.errors.{kind.__name__}`{also}: {summary}"
    for other in classes():
        if kind in other.__bases__:
            yield from _lines(other, depth + 1)
