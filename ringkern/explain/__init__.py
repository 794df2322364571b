"""Why a call goes the way it goes: what was chosen, from what, and what the others would cost.

>>> from ringkern.explain import explain
>>> print(explain("cpu", 2, 8))                          # doctest: +SKIP

``python -m ringkern explain`` prints it.
"""

from __future__ import annotations

from .answer import explain
from .command import DESCRIPTION, add_arguments, overview, run
from .explanation import Candidate, Explanation

__all__ = [
    "DESCRIPTION",
    "Candidate",
    "Explanation",
    "add_arguments",
    "explain",
    "overview",
    "run",
]
