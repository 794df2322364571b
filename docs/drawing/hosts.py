"""The three phases of an all-reduce between hosts, run on rings of this machine."""

from __future__ import annotations

import torch

from docs.drawing.svg import RANKS, Picture
from ringkern import local

HOSTS = ("a", "b")
LOCAL = RANKS // len(HOSTS)  # ranks on each
HERE = range(LOCAL)  # local ranks; rail j joins those of number j
PHASES = ("reduce-scatter inside", "all-reduce between", "all-gather inside")

Held = list[list[tuple[int, ...]]]  # for each rank and shard: the ranks in its sum


def ranks_on(host: int) -> list[int]:
    """Returns the group's numbers of a host's ranks, by local rank."""
    return [host * LOCAL + j for j in HERE]


def phases() -> list[Held]:
    """Returns the ranks' shards before the first phase and after each; () for a dropped shard.

    Every rank contributes a bit of its own, so a sum shows its contributors."""
    tensors = [torch.full((LOCAL,), 1 << rank) for rank in range(RANKS)]
    shards = [torch.zeros(1, dtype=torch.int64) for _ in range(RANKS)]
    states = [[[_contributors(bits) for bits in tensor] for tensor in tensors]]
    with local.Ring(["cpu"] * LOCAL) as ring:  # of each host in turn
        for host in range(len(HOSTS)):
            mine = ranks_on(host)
            ring.reduce_scatter([shards[r] for r in mine], [tensors[r] for r in mine])
        states.append(_of_shards(shards))
    with local.Ring(["cpu"] * len(HOSTS)) as engine:  # of each rail in turn
        for j in HERE:
            engine.all_reduce([shards[ranks_on(host)[j]] for host in range(len(HOSTS))])
        states.append(_of_shards(shards))
    with local.Ring(["cpu"] * LOCAL) as ring:
        for host in range(len(HOSTS)):
            mine = ranks_on(host)
            ring.all_gather([tensors[r] for r in mine], [shards[r] for r in mine])
    states.append([[_contributors(bits) for bits in tensor] for tensor in tensors])
    return states


def _contributors(bits: torch.Tensor) -> tuple[int, ...]:
    return tuple(rank for rank in range(RANKS) if int(bits) >> rank & 1)


def _of_shards(shards: list[torch.Tensor]) -> Held:
    """Keeps the shard of each rank's local rank, and no other one."""
    return [
        [_contributors(shards[rank][0]) if j == rank % LOCAL else () for j in HERE]
        for rank in range(RANKS)
    ]


_WIDE, _HIGH, _LEFT, _TOP = 64, 30, 214, 96
_SHARD, _PITCH, _HOST_GAP, _ROW = _WIDE + 4, 172, 66, 98


def _x(rank: int, shard: int) -> int:
    return _LEFT + rank * _PITCH + rank // LOCAL * _HOST_GAP + shard * _SHARD


def _y(row: int) -> int:
    return _TOP + row * _ROW


def hosts() -> Picture:
    """Draws rows for the start and each phase, and columns for the ranks of two hosts."""
    held = phases()
    height = _y(len(held) - 1) + _HIGH + 20
    picture = Picture(_x(RANKS, 0) - 10, height, "An all-reduce of two hosts with two ranks each")
    for host, name in enumerate(HOSTS):
        first, last = ranks_on(host)[0], ranks_on(host)[-1]
        left, right = _x(first, 0) - 18, _x(last, LOCAL) + 14
        picture.box(left, 36, right - left, height - 46, "plain", round=8)
        picture.text((left + right) // 2, 20, f"host {name}", "bold")
    for rank in range(RANKS):
        picture.text(_x(rank, LOCAL // 2) - 2, 54, f"rank {rank}", "bold")
        picture.text(_x(rank, LOCAL // 2) - 2, 72, f"local rank {rank % LOCAL}", "soft small")
    for row, state in enumerate(held):
        _row(picture, row, state)
    for rank in range(RANKS):
        _across(picture, 0, rank, rank % LOCAL, gathers=False)
        _across(picture, 2, rank, rank % LOCAL, gathers=True)
    for rail in HERE:
        _rail(picture, 1, rail)
    return picture


def _row(picture: Picture, row: int, state: Held) -> None:
    name, how = "before", "each its own numbers"
    if row:
        name, how = PHASES[row - 1], "over the engines" if row == 2 else "over each host's ring"
    picture.text(16, _y(row) + 7, name, "bold", anchor="start")
    picture.text(16, _y(row) + 24, how, "soft small", anchor="start")
    for rank, shards in enumerate(state):
        for j, ranks in enumerate(shards):
            if ranks:
                picture.shares(_x(rank, j), _y(row), _WIDE, _HIGH, ranks, f"shard {j}")


def _across(picture: Picture, row: int, rank: int, shard: int, *, gathers: bool) -> None:
    """Draws the shards between the ranks of a host."""
    for other in ranks_on(rank // LOCAL):
        if other != rank:
            source, goal = (rank, other) if gathers else (other, rank)
            start = _x(source, shard) + _WIDE // 2, _y(row) + _HIGH + 4
            picture.arrow([start, (_x(goal, shard) + _WIDE // 2, _y(row + 1) - 5)], "faint")


def _rail(picture: Picture, row: int, rail: int) -> None:
    """Draws the exchange between the hosts' ranks of this number."""
    ends = [_x(ranks_on(host)[rail], rail) + _WIDE // 2 for host in range(len(HOSTS))]
    top, y = _y(row) + _HIGH + 4, _y(row) + _HIGH + 24 + 22 * rail
    for end in ends:
        picture.arrow([(end, y), (end, _y(row + 1) - 5)])
    picture.line([(ends[0], top), (ends[0], y), (ends[-1], y), (ends[-1], top)], "arrow")
    gap = _x(LOCAL, 0) - 18 - _HOST_GAP // 2
    picture.text(gap + 4, y - 9, f"rail {rail}", "small bold")
