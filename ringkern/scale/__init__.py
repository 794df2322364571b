"""All-reduce on machines that are not here: predicted, with what the prediction is worth.

``python -m ringkern model --topology dgx-h100 --nodes 16`` prints it; what is behind it:

- the rings that the machine's links carry (:mod:`ringkern.rings`) give the bandwidth,
- NCCL's published constants (``ringkern.scale.constants``) the latency of each protocol,
- figures that others published (``PUBLISHED``) the error.
"""

from __future__ import annotations

from .predict import Estimate, Network, Node, estimates, node_of
from .published import PUBLISHED, Published, error_of, median_error
from .report import DESCRIPTION, add_arguments, run

__all__ = [
    "DESCRIPTION",
    "PUBLISHED",
    "Estimate",
    "Network",
    "Node",
    "Published",
    "add_arguments",
    "error_of",
    "estimates",
    "median_error",
    "node_of",
    "run",
]
