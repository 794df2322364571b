"""Explains a choice: what was chosen, from what, and what the others would cost.

>>> from ringkern.choose.explain import explain
>>> answer = explain("cpu", ranks=2, nbytes=8, algorithm="ring", protocol="ll")
>>> answer.way.protocol, answer.hops
('ll', 2)

``print(answer)`` shows the predicted times of all candidates, too: what
``python -m ringkern explain`` prints.
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
