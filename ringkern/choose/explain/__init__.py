"""Explains a choice: the chosen way, the data behind it, and the predicted times of the others.

>>> from ringkern.choose.explain import explain
>>> answer = explain("cpu", ranks=2, nbytes=8, algorithm="ring", protocol="ll")
>>> answer.way.protocol, answer.hops
('ll', 2)

``print(answer)`` also shows the predicted times of all candidates, like
``python -m ringkern explain``.
"""

from __future__ import annotations

from .answer import explain
from .explanation import Candidate, Explanation
from .hosts import explain_over_hosts

__all__ = [
    "Candidate",
    "Explanation",
    "explain",
    "explain_over_hosts",
]
