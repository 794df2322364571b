"""Predictions of an all-reduce on machines that are not available, with their error.

``python -m ringkern model --topology dgx-h100 --hosts 16`` prints it. Its sources are:

- the rings that the machine's links carry (:mod:`ringkern.choose.rings`) give the bandwidth,
- NCCL's published constants (``ringkern.tools.model.constants``) the latency of each protocol,
- figures that others published (``PUBLISHED``) the error;
- for ranks that share one GPU (``ringkern.tools.model.one_gpu``), the instructions and bytes of
  ringkern's own kernels, next to measurements (``ringkern.tools.model.measured``);
- for hosts without GPUs (``ringkern.tools.model.cpu``), ringkern's times inside one, and Gloo;
- for ranks with several threads, on one socket or several (``ringkern.tools.model.sockets``), the
  bytes that ringkern, DeepSpeed and vLLM move;
- between hosts, the cut in rails and pieces that calls have (``csrc/hosts/stages.h``).
"""

from __future__ import annotations

from . import cpu, measured, one_gpu, sockets
from .command import DESCRIPTION, add_arguments, run
from .estimate import FLAT_RING, FLAT_TREE, HIERARCHY, WAYS, Estimate
from .predict import Network, Node, estimates, node_of
from .published import PUBLISHED, Published, error_of, median_error
from .sweep import by_hosts, faster

__all__ = [
    "DESCRIPTION",
    "FLAT_RING",
    "FLAT_TREE",
    "HIERARCHY",
    "PUBLISHED",
    "WAYS",
    "Estimate",
    "Network",
    "Node",
    "Published",
    "add_arguments",
    "by_hosts",
    "cpu",
    "error_of",
    "estimates",
    "faster",
    "measured",
    "median_error",
    "node_of",
    "one_gpu",
    "run",
    "sockets",
]
