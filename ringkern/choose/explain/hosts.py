"""Explains a call of ranks on several hosts: its cut, and the part of one host's ring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ..._C import Stages
from ...arguments import way_asked
from ...hosts import Hosts, engine_names, inter_host_costs
from ...units import say_size
from .answer import explain
from .explanation import Explanation


class Cut(NamedTuple):
    """The cut of one call.

    Attributes:
        rails: the rails in use: all, or 1 if only a host's first rank speaks with other hosts.
        pieces: the number of consecutive pieces.
    """

    rails: int
    pieces: int


def explain_over_hosts(
    hosts: Hosts,
    rank: int,
    inter_host: str | None,
    device: str,
    nbytes: int,
    *,
    dtype: torch.dtype | str,
    collective: str,
    **asked: Any,
) -> Explanation:
    """Explains the part of a host's ring in a call, with the rest of the call in ``between``.

    Args:
        hosts: the hosts of the group.
        rank: a rank on the host in question.
        inter_host: see :class:`ringkern.Communicator`.
        device, nbytes, dtype, collective, asked: as for
            :func:`ringkern.choose.explain.explain`; ``lists`` are those of the ring of that host.

    Raises:
        ValueError: see :func:`ringkern.choose.explain.explain`.
    """
    engine = engine_names(inter_host).get(device, "")
    inter_host_cost = inter_host_costs(inter_host, hosts.crowded).get(device, (0, 1, False))
    here = hosts.ranks_on(hosts.host_of[rank])
    steps = _Steps(hosts, len(here), inter_host_cost, nbytes)
    in_rank_order = way_asked("auto", "auto", asked.get("deterministic", "auto"), "auto")[2]
    cut, inside, inside_bytes = steps.of(collective, in_rank_order)
    found = explain(device, len(here), inside_bytes, dtype=dtype, collective=inside, **asked)
    return replace(found, between=_words(hosts, rank, engine, collective, nbytes, cut))


class _Steps:
    """The first steps inside a host of the collectives of ``csrc/hosts/torch_hierarchy.h``."""

    def __init__(
        self, hosts: Hosts, here: int, inter_host_cost: tuple[int, int, bool], nbytes: int
    ) -> None:
        counts = [len(hosts.ranks_on(host)) for host in range(hosts.count)]
        self._least, self._most, self._here = min(counts), max(counts), here
        self._hosts, self._inter_host_cost, self._nbytes = hosts.count, inter_host_cost, nbytes
        in_order = tuple(sorted(hosts.host_of)) == hosts.host_of
        self._regular = self._least == self._most and in_order

    def of(self, collective: str, in_rank_order: bool) -> tuple[Cut | None, str, int]:
        """Returns the cut, ``None``: there is none; the ring's first step, and its bytes."""
        if collective in ("broadcast", "reduce"):
            cut = self._cut()._replace(rails=1)
            return cut, collective, -(-self._nbytes // cut.pieces)
        if collective == "all_gather" or (collective == "reduce_scatter" and self._regular):
            rails = Cut(self._least, 1) if self._regular else None
            return rails, collective, -(-self._nbytes // self._hosts)
        if collective not in ("all_reduce", "reduce_scatter"):
            return None, collective, self._nbytes  # explain() says what there is
        cut = self._cut()
        piece = -(-self._nbytes // cut.pieces)
        if in_rank_order or (cut.rails == 1 and piece <= Stages.little_bytes):
            return cut, "all_reduce", piece
        if cut.rails == self._here:
            return cut, "reduce_scatter", piece
        return cut, "reduce", -(-piece // cut.rails)

    def _cut(self) -> Cut:
        inside = self._most > 1
        made = Stages(self._nbytes, 1, self._least, self._hosts, inside, self._inter_host_cost)
        return Cut(made.rails, max(1, made.long_stages))


def _words(
    hosts: Hosts, rank: int, engine: str, collective: str, nbytes: int, cut: Cut | None
) -> str:
    names = ", ".join(hosts.names[:4]) + (", ..." if hosts.count > 4 else "")
    way, inside = f"by {engine} alone", ""
    if cut is not None:
        inside = f"; inside {hosts.name_of(rank)} first"
        pieces = f"{cut.pieces} piece{'' if cut.pieces == 1 else 's'}"
        way = f"{pieces} over {cut.rails} rail{'' if cut.rails == 1 else 's'} of {engine}"
    return (
        f"{collective} of {say_size(nbytes)}B, {len(hosts.host_of)} ranks on {hosts.count} hosts "
        f"({names}): {way}{inside}"
    )
