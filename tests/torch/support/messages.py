"""Probes of messages from one rank to another, and of objects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.support.data import DTYPES, Call, digits, same
from tests.torch.support.registry import expect, row

SECTION = "Messages"
OBJECTS = "Objects"


def _around(rank: int, size: int) -> tuple[int, int]:
    return (rank + 1) % size, (rank - 1) % size


def _ring(c: Call) -> None:
    """Sends from every rank to the next; rank 0 sends first, so that blocking calls cannot
    deadlock.
    """
    to, source = _around(c.rank, c.size)
    got = c.blank(c.piece(source))
    if c.rank == 0:
        dist.send(c.piece(c.rank), to)
    expect(dist.recv(got, source) == source, "recv does not return the rank that sent")
    if c.rank != 0:
        dist.send(c.piece(c.rank), to)
    c.check(got, c.piece(source))
    c.end()


@row(SECTION, "send recv")
def send_recv(rank: int, size: int) -> None:
    _ring(Call(rank, size))


@row(SECTION, "send recv", "strided tensors")
def strided(rank: int, size: int) -> None:
    _ring(Call(rank, size, layout="strided"))


@row(SECTION, "send recv", "tensors of 0 elements")
def empty(rank: int, size: int) -> None:
    _ring(Call(rank, size, layout="empty"))


@row(SECTION, "send recv", "dtypes", cases={dtype: (dtype,) for dtype in DTYPES})
def dtypes(rank: int, size: int, dtype: str) -> None:
    _ring(Call(rank, size, dtype=dtype))


@row(SECTION, "isend irecv")
def isend_irecv(rank: int, size: int) -> None:
    """Sends and receives between all pairs at once, several messages each."""
    peers = [p for p in range(size) if p != rank]
    got = {(p, i): torch.zeros(27) for p in peers for i in range(3)}
    works = [dist.irecv(x, p) for (p, _), x in got.items()]
    sent = [digits(rank, shift=p + i).float() for p in peers for i in range(3)]
    works += [dist.isend(x, p) for x, p in zip(sent, [p for p in peers for _ in range(3)])]
    for work in works:
        expect(work is not None, "no Work")
        work.wait()
    for (p, i), x in got.items():
        same(x, digits(p, shift=rank + i).float(), f"message {i} of rank {p}")


@row(SECTION, "isend irecv", "to oneself")
def to_oneself(rank: int, size: int) -> None:
    got = torch.zeros(27)
    works = [dist.irecv(got, rank), dist.isend(digits(rank).float(), rank)]
    for work in works:
        work.wait()
    same(got, digits(rank).float())


@row(SECTION, "isend irecv", "receives posted in another order, told apart by `tag`")
def tags(rank: int, size: int) -> None:
    to, source = _around(rank, size)
    sent = [digits(rank, shift=tag).float() for tag in range(3)]
    works = [dist.isend(x, to, tag=tag) for tag, x in enumerate(sent)]
    for tag in (2, 0, 1):
        got = torch.zeros(27)
        dist.recv(got, source, tag=tag)
        same(got, digits(source, shift=tag).float(), f"the message with tag {tag}")
    for work in works:
        work.wait()


@row(SECTION, "recv", "from any rank (`src=None`)")
def any_source(rank: int, size: int) -> None:
    if rank != 0:
        dist.send(digits(rank).float(), 0)
        return
    seen = set()
    for _ in range(size - 1):
        got = torch.zeros(27)
        source = dist.recv(got)
        same(got, digits(source).float(), f"the message of rank {source}")
        seen.add(source)
    expect(seen == set(range(1, size)), f"messages came from {sorted(seen)}")


@row(SECTION, "recv", "from any rank, with a `tag`")
def any_source_tag(rank: int, size: int) -> None:
    if rank != 0:
        dist.send(digits(rank).float(), 0, tag=rank)
        return
    for tag in range(size - 1, 0, -1):
        got = torch.zeros(27)
        source = dist.recv(got, tag=tag)
        expect(source == tag, f"tag {tag} came from rank {source}")
        same(got, digits(source).float(), f"the message with tag {tag}")


@row(SECTION, "irecv", "from any rank, several at once")
def any_source_async(rank: int, size: int) -> None:
    if rank != 0:
        dist.send(digits(rank).float(), 0)
        return
    got = [torch.zeros(27) for _ in range(size - 1)]
    works = [dist.irecv(x) for x in got]
    for work in works:
        work.wait()
    sources = [work._source_rank() for work in works]
    expect(sorted(sources) == list(range(1, size)), f"messages came from {sources}")
    for x, source in zip(got, sources):
        same(x, digits(source).float(), f"the message of rank {source}")


@row(SECTION, "send recv", "`group_src` and `group_dst`")
def group_ranks(rank: int, size: int) -> None:
    to, source = _around(rank, size)
    got = torch.zeros(27)
    work = dist.isend(digits(rank).float(), group_dst=to)
    dist.recv(got, group_src=source)
    work.wait()
    same(got, digits(source).float())


# ---- Batches -------------------------------------------------------------------------------------


def _batch(ops: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(ops):
        work.wait()


@row(SECTION, "batch_isend_irecv P2POp")
def batch(rank: int, size: int) -> None:
    to, source = _around(rank, size)
    got = torch.zeros(27)
    send = dist.P2POp(dist.isend, digits(rank).float(), to)
    _batch([send, dist.P2POp(dist.irecv, got, source)])
    same(got, digits(source).float())


@row(SECTION, "batch_isend_irecv P2POp", "receives first, several a pair, of several sizes")
def batch_of_many(rank: int, size: int) -> None:
    peers = [p for p in range(size) if p != rank]
    got = {(p, i): torch.zeros(27 - 9 * i) for p in peers for i in range(3)}
    receives = [dist.P2POp(dist.irecv, x, p) for (p, _), x in got.items()]
    sends = [
        dist.P2POp(dist.isend, digits(rank, 27 - 9 * i).float(), p) for p in peers for i in range(3)
    ]
    _batch(receives + sends)
    for (p, i), x in got.items():
        same(x, digits(p, 27 - 9 * i).float(), f"message {i} of rank {p}")


@row(SECTION, "batch_isend_irecv P2POp", "by some ranks of the group only")
def batch_of_two(rank: int, size: int) -> None:
    if rank < 2:
        got = torch.zeros(27)
        send = dist.P2POp(dist.isend, digits(rank).float(), 1 - rank)
        _batch([send, dist.P2POp(dist.irecv, got, 1 - rank)])
        same(got, digits(1 - rank).float())


# ---- Objects -------------------------------------------------------------------------------------


def thing(rank: int) -> dict[str, Any]:
    """Returns an object whose size differs from rank to rank."""
    return {"rank": rank, "text": "x" * 100 * rank, "nested": [None, (rank,), torch.ones(rank)]}


def expect_thing(got: Any, rank: int) -> None:
    wanted = thing(rank)
    expect(isinstance(got, dict), f"an object of rank {rank} came as {type(got).__name__}")
    expect(got["rank"] == rank and got["text"] == wanted["text"], f"the object of rank {rank}")
    same(got["nested"][2], wanted["nested"][2])


@row(OBJECTS, "all_gather_object")
def all_gather_object(rank: int, size: int) -> None:
    out: list[Any] = [None] * size
    dist.all_gather_object(out, thing(rank))
    for source, got in enumerate(out):
        expect_thing(got, source)


@row(OBJECTS, "gather_object")
def gather_object(rank: int, size: int) -> None:
    out: list[Any] | None = [None] * size if rank == 1 else None
    dist.gather_object(thing(rank), out, dst=1)
    for source, got in enumerate(out or ()):
        expect_thing(got, source)


@row(OBJECTS, "broadcast_object_list")
def broadcast_object_list(rank: int, size: int) -> None:
    things = [thing(i) if rank == 1 else None for i in range(4)]
    dist.broadcast_object_list(things, src=1)
    for i, got in enumerate(things):
        expect_thing(got, i)


@row(OBJECTS, "scatter_object_list")
def scatter_object_list(rank: int, size: int) -> None:
    out: list[Any] = [None]
    dist.scatter_object_list(out, [thing(d) for d in range(size)] if rank == 1 else None, src=1)
    expect_thing(out[0], rank)


@row(OBJECTS, "send_object_list recv_object_list")
def object_messages(rank: int, size: int) -> None:
    if rank == 0:
        dist.send_object_list([thing(i) for i in range(3)], dst=2)
    if rank == 2:
        got: list[Any] = [None] * 3
        expect(dist.recv_object_list(got, src=0) == 0, "not from rank 0")
        for i in range(3):
            expect_thing(got[i], i)


@row(OBJECTS, "recv_object_list", "from any rank (`src=None`)")
def objects_of_any(rank: int, size: int) -> None:
    """Uses a group whose deadline ends the send if the receiver raises."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    try:
        if rank == 2:
            dist.send_object_list([thing(1)], dst=0, group=group)
        if rank == 0:
            got: list[Any] = [None]
            expect(dist.recv_object_list(got, group=group) == 2, "not from rank 2")
            expect_thing(got[0], 1)
    finally:
        dist.barrier()
        dist.destroy_process_group(group)
