"""Groups whose ranks are on several hosts: the host of each rank, and the engines between hosts.

A host is a set of ranks that can share memory: they have one kernel (the same boot id) and one
network namespace, or the same ``RINGKERN_HOST``. Within a host the ring reduces. Between hosts an
engine does, which is a backend of torch.distributed such as Gloo or NCCL: ringkern itself opens no
connection over a network.
"""

from __future__ import annotations

from .engines import engine_maker, engine_names, inter_host_costs, over_hosts
from .hosts import Hosts, hosts_of
from .search import Known, Search, find_hosts, store_errors, unique_prefix

__all__ = [
    "Hosts",
    "Known",
    "Search",
    "engine_maker",
    "engine_names",
    "find_hosts",
    "hosts_of",
    "inter_host_costs",
    "over_hosts",
    "store_errors",
    "unique_prefix",
]
