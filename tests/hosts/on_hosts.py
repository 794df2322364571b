"""Ranks of tests/ranks.py on simulated hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

from ringkern.hosts import search


@contextlib.contextmanager
def on_hosts(rank: int, counts: Sequence[int]) -> Iterator[str]:
    """Sets hosts like RINGKERN_HOST, for objects made inside: this many ranks on each host.

    The rank's host: "a", "b" and so on. Gloo stays on this machine.
    """
    names = [chr(ord("a") + host) for host, count in enumerate(counts) for _ in range(count)]
    before, interface = search.config, os.environ.get("GLOO_SOCKET_IFNAME")
    search.config = dataclasses.replace(before, host=names[rank])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield names[rank]
    finally:
        search.config = before
        del os.environ["GLOO_SOCKET_IFNAME"]
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
