"""Kinds of call between pairs of ranks: messages, exchanges, objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.hosts.fuzz.calls import Call, kind
from tests.hosts.fuzz.values import MOVED, Plain

TAGS = 4  # of one call, from which its messages choose


@kind()
def gather(c: Call) -> Any:
    dtype, n, root = c.choose("dtype", MOVED), c.length(), c.random.randrange(c.size)
    values = c.all_bits(dtype, n)
    source, whole = c.box(values[c.me]), None
    if c.me == root:
        outs = c.list_of([torch.zeros_like(x) for x in values])
        c.expect(outs, values, moved=True)
        whole = outs.tensors
    c.keep(source)
    return dist.gather(source.tensor, whole, None, c.group, c.async_op, group_dst=root)


@kind()
def scatter(c: Call) -> Any:
    dtype, n, root = c.choose("dtype", MOVED), c.length(), c.random.randrange(c.size)
    values, given = c.all_bits(dtype, n), None
    out = c.box(torch.zeros_like(values[0]))
    if c.me == root:
        ins = c.list_of(values)
        c.keep(ins)
        given = ins.tensors
    c.expect(out, values[c.me], moved=True)
    return dist.scatter(out.tensor, given, None, c.group, c.async_op, group_src=root)


@kind()
def all_to_all(c: Call) -> Any:
    sizes = _exchange(c, 1025)
    dtype = c.choose("dtype", MOVED)
    outs = [c.bits(dtype, r, c.me, sizes[r][c.me]) for r in range(c.size)]
    ins = c.list_of([c.bits(dtype, c.me, r, sizes[c.me][r]) for r in range(c.size)])
    found = c.list_of([torch.zeros_like(x) for x in outs])
    c.expect(found, outs, moved=True)
    c.keep(ins)
    return dist.all_to_all(found.tensors, ins.tensors, c.group, c.async_op)


@kind()
def all_to_all_single(c: Call) -> Any:
    """Rows of one element or of three; of a column, and of a matrix that is transposed."""
    sizes, dtype, width = _exchange(c, 1025), c.choose("dtype", MOVED), c.choose("width", (1, 3))
    gets, gives = [of[c.me] for of in sizes], sizes[c.me]
    parts = [c.bits(dtype, c.me, r, n * width) for r, n in enumerate(gives)]
    expected = torch.cat([c.bits(dtype, r, c.me, n * width) for r, n in enumerate(gets)])
    source, out = (_matrix(c, x, width) for x in (torch.cat(parts), torch.zeros_like(expected)))
    c.expect(Plain(out), expected, moved=True)
    even = len({n for of in sizes for n in of}) == 1 and c.random.random() < 0.5
    splits = () if even else (gets, gives)
    return dist.all_to_all_single(out, source, *splits, group=c.group, async_op=c.async_op)


def _matrix(c: Call, x: torch.Tensor, width: int) -> torch.Tensor:
    x, way = x.view(-1, width), c.own.choice(("rows", "transposed", "wide"))
    if way == "transposed":
        return x.t().contiguous().t()
    wide = torch.zeros(len(x), 3 * width + 1, dtype=x.dtype)[:, 1 : 1 + width]
    return wide.copy_(x) if way == "wide" else x.clone()


def _exchange(c: Call, most: int) -> list[list[int]]:
    """Returns the amount that each rank gives to each other: all equal, or not."""
    n, even = c.length(most), c.choose("even", (True, False))
    return [[n if even else c.length(most) for _ in c.ranks] for _ in c.ranks]


# ---- messages -----------------------------------------------------------------------------------


def _tag(c: Call) -> int:
    """Returns the first of the call's tags, which no other call in flight has."""
    return c.number % (1 << 24) * TAGS


def _pairs(c: Call, most: int) -> list[tuple[int, int]]:
    return [tuple(c.random.sample(range(c.size), 2)) for _ in range(c.random.randint(1, most))]


def _messages(c: Call, most: int) -> Iterator[tuple[bool, torch.Tensor, int, int]]:
    """Yields its ends of some messages: True if it sends, the tensor, the other rank, the tag."""
    for i, (a, b) in enumerate(_pairs(c, most)):
        dtype, n, tag = c.choose("dtype", MOVED), c.length(), _tag(c) + c.random.randrange(TAGS)
        values = c.bits(dtype, a, i, n)
        if c.me == a:
            source = c.box(values)
            c.keep(source)
            yield True, source.tensor, b, tag
        if c.me == b:
            out = c.box(torch.zeros_like(values))
            c.expect(out, values, moved=True)
            yield False, out.tensor, a, tag


@kind("pairs", "blocks")
def send_recv(c: Call) -> Any:
    for sends, x, other, tag in _messages(c, 4):
        if sends:
            dist.send(x, None, c.group, tag, group_dst=other)
        else:
            source = c.ranks[other]
            by_number = {"group_src": other} if c.own.random() < 0.5 else {"src": source}
            c.expect_same(dist.recv(x, group=c.group, tag=tag, **by_number), source)


@kind("pairs")
def isend_irecv(c: Call) -> Any:
    """Several messages, which are received in another order; those of one tag in theirs."""
    ends = [*_messages(c, 8)]
    sends, receives = ([end for end in ends if end[0] == way] for way in (True, False))
    order = {key: c.own.random() for key in sorted({of[2:] for of in receives})}
    receives.sort(key=lambda of: order[of[2:]])
    both = sends + receives if c.own.random() < 0.5 else receives + sends
    return [
        dist.isend(x, group=c.group, tag=tag, group_dst=other)
        if sent
        else dist.irecv(x, group=c.group, tag=tag, group_src=other)
        for sent, x, other, tag in both
    ]


@kind("pairs")
def batch_isend_irecv(c: Call) -> Any:
    ops = [
        dist.P2POp(dist.isend if sends else dist.irecv, x, None, c.group, tag, group_peer=other)
        for sends, x, other, tag in _messages(c, 8)
    ]
    receives_first = c.own.random() < 0.5
    ops.sort(key=lambda op: (op.op is dist.isend) == receives_first)
    return dist.batch_isend_irecv(ops) if ops else []


@kind("pairs")
def any_source(c: Call) -> Any:
    """Messages of several ranks to one, which takes them as they come; those of each in order."""
    dtype, n, root = c.choose("dtype", MOVED), c.length(), c.random.randrange(c.size)
    others = [r for r in range(c.size) if r != root]
    senders = [c.random.choice(others) for _ in range(c.random.randint(1, 6))]
    if c.me != root:
        sources = [c.box(c.bits(dtype, c.me, i, n)) for i, r in enumerate(senders) if r == c.me]
        if c.async_op:
            options = {"group": c.group, "tag": _tag(c), "group_dst": root}
            return [dist.isend(source.tensor, **options) for source in sources]
        for source in sources:
            dist.send(source.tensor, None, c.group, _tag(c), group_dst=root)
        return []
    outs = [c.box(c.bits(dtype, root, 99, n)) for _ in senders]
    works: list[Any] = []
    told: list[int] = []
    for out in outs:
        if c.async_op:
            works.append(dist.irecv(out.tensor, None, c.group, _tag(c)))
        else:
            told.append(c.ranks.index(dist.recv(out.tensor, None, c.group, _tag(c))))

    def check() -> str | None:
        sources = [work._source_rank() for work in works] if works else told
        if sorted(sources) != sorted(senders):
            return f"messages of {sources}, expected those of {senders}"
        sent = {r: [i for i, s in enumerate(senders) if s == r] for r in senders}
        for out, r in zip(outs, sources):
            i = sent[r].pop(0)
            if text := out.differs(c.bits(dtype, r, i, n), True):
                return f"message {i} of rank {r}: {text}"
        return None

    c.outputs += outs
    c.checks.append(check)
    return works


# ---- objects ------------------------------------------------------------------------------------


def _object(c: Call, rank: int, part: int = 0) -> Any:
    n = int(np.random.default_rng([c.number, rank, part]).integers(0, 3000))
    return {"rank": rank, "part": part, "text": "x" * n, "none": None}


@kind("blocks")
def objects(c: Call) -> Any:
    what = c.choose("what", ("all_gather", "gather", "broadcast", "scatter"))
    root, everyone = c.random.randrange(c.size), [_object(c, r) for r in range(c.size)]
    found: list[Any] = [None] * c.size
    if what == "all_gather":
        dist.all_gather_object(found, everyone[c.me], c.group)
        c.expect_same(found, everyone)
    if what == "gather":
        mine = found if c.me == root else None
        dist.gather_object(everyone[c.me], mine, None, c.group, group_dst=root)
        c.expect_same(found, everyone if c.me == root else [None] * c.size)
    if what == "broadcast":
        given = list(everyone) if c.me == root else found
        dist.broadcast_object_list(given, None, c.group, group_src=root)
        c.expect_same(given, everyone)
    if what == "scatter":
        given = everyone if c.me == root else None
        dist.scatter_object_list(found, given, None, c.group, group_src=root)
        c.expect_same(found[0], everyone[c.me])


@kind("pairs", "blocks")
def object_messages(c: Call) -> Any:
    for i, (a, b) in enumerate(_pairs(c, 2)):
        given = [_object(c, a, i), _object(c, a, i + 100)]
        if c.me == a:
            dist.send_object_list(given, None, c.group, group_dst=b)
        if c.me == b:
            found = [None, None]
            dist.recv_object_list(found, None, c.group, group_src=a)
            c.expect_same(found, given)
