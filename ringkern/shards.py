"""Sums whose bits do not depend on the number of ranks.

A program divides its work into a fixed number of shards, such as the microbatches of a step. Each
rank computes some of them, and :class:`ShardSum` adds their results in one order, a binary tree
over all shards (``csrc/core/tree.h``):

>>> import torch, torch.distributed as dist, ringkern
>>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
>>> sums = ringkern.ShardSum(4)
>>> for shard in sums.shards:  # this rank's: with one rank, all
...     sums.add(torch.full((3,), 0.1 * shard))
>>> sums.all_reduce()
tensor([0.6000, 0.6000, 0.6000])
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch
import torch.distributed as dist

from . import _C
from .arguments import Op, reduce_op
from .comm import Communicator, communicator_for
from .errors import CollectiveMismatchError, CommUsageError

_Kind = tuple[torch.Size, torch.dtype, torch.device]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAN: float = struct.unpack("d", struct.pack("Q", 2**63 - 1))[0]  # all bits of the mantissa are set
# Bytes of the nodes of all ranks that are added up at a time: they stay in a cache.
_GATHERED_BYTES = 1 << 20


@dataclass(frozen=True)
class Order:
    """The order in which a rank adds its shards, and in which all ranks add their nodes.

    A node is a sum of consecutive shards of one rank that is also a sum with any other number of
    ranks (``csrc/core/tree.h``).

    Attributes:
        count: the number of shards of all ranks.
        shards: the numbers of this rank's shards.
        sums_of_shards: how many sums each of them completes.
        nodes: how many nodes each rank has.
        sums_of_nodes: how many sums each node of all ranks completes.
        is_even: whether each rank has one node, and they are added like one shard a rank.
    """

    count: int
    shards: range
    sums_of_shards: list[int]
    nodes: list[int]
    sums_of_nodes: list[int]
    is_even: bool

    def total(self, ring: Communicator, nodes: list[torch.Tensor]) -> torch.Tensor:
        """Returns the sum of the nodes of all ranks, in their dtype; uses this rank's, flat."""
        total = nodes[0]
        if ring.size == 1:
            return _with_one_nan(total, total)
        if not (self.is_even and ring.adds_by_tree):
            return self._gathered(ring, nodes)
        ring.all_reduce(total, deterministic="world_invariant", shards=ring.size)
        return total

    def part(self, ring: Communicator, nodes: list[torch.Tensor]) -> torch.Tensor:
        """Returns this rank's part of :meth:`total`, one of equal parts."""
        n = nodes[0].numel() // ring.size
        if not self.is_even or ring.size != 2:
            return self.total(ring, nodes).narrow(0, ring.rank * n, n).clone()
        [node], part = nodes, nodes[0].new_empty(n)
        ring.reduce_scatter(part, node)  # a + b is b + a, so the order of a ring does not matter
        return part

    def _gathered(self, ring: Communicator, nodes: list[torch.Tensor]) -> torch.Tensor:
        # All ranks receive all nodes, a part of their elements at a time, and add them up.
        size, most, n = ring.size, max(self.nodes), nodes[0].numel()
        total = nodes[0]  # each part of it is replaced after it was sent
        each = max(1, min(n, _GATHERED_BYTES // (size * most * total.element_size())))
        mine, all_ranks = total.new_empty(most * each), total.new_empty(size * most * each)
        for first in range(0, n, each):
            count = min(each, n - first)
            sent = mine[: most * count].view(most, count)
            for row, node in zip(sent, nodes):
                row.copy_(node[first : first + count])
            rows = all_ranks[: size * most * count].view(size, most, count)
            ring.all_gather(rows, sent)
            received = (rows[rank, i] for rank in range(size) for i in range(self.nodes[rank]))
            open_nodes: list[torch.Tensor] = []
            for node, sums in zip(received, self.sums_of_nodes, strict=True):
                open_nodes.append(node)
                _add_last(open_nodes, sums)
            _with_one_nan(open_nodes[0], total[first : first + count])
        return total


class Nodes:
    """This rank's sums that are not complete, and memory of earlier ones."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._open: list[torch.Tensor] = []
        self._free: list[torch.Tensor] = []

    def take(self, at: int, tensor: torch.Tensor) -> None:
        """Adds the tensor of this rank's shard number ``at``, a copy of it, or to a sum."""
        sums = self._order.sums_of_shards[at]
        if sums > 0:
            self._open[-1].add_(tensor.to(self._open[-1].dtype))
            self._free += _add_last(self._open, sums - 1)
            return
        new = self._free.pop() if self._free else None
        if new is None or (new.shape, new.dtype, new.device) != (
            tensor.shape,
            _wide(tensor.dtype),
            tensor.device,
        ):
            new = torch.empty(tensor.shape, dtype=_wide(tensor.dtype), device=tensor.device)
        self._open.append(new.copy_(tensor))

    def end(self, *, keep: bool) -> list[torch.Tensor]:
        """Returns the nodes, flat; ``keep``: their memory is used again for the next ones."""
        nodes, self._open = self._open, []
        self._free += nodes if keep else []
        return [node.view(-1) for node in nodes]


def order_of(shards: int, ring: Communicator) -> Order:
    """Returns the order of this rank, which is the same on all ranks.

    Raises:
        ValueError: ``shards`` is not 1 to 1024, or less than the number of ranks.
    """
    return _order_of(shards, ring.rank, ring.size)


@functools.lru_cache
def _order_of(shards: int, rank: int, size: int) -> Order:
    tree = _C.ShardTree(shards)
    if size > shards:
        raise ValueError(
            f"{shards} shards are too few for {size} ranks: each rank needs one; give at least "
            f"{size}, or use fewer ranks"
        )
    first, count = tree.run_of(rank, size)
    nodes = [len(tree.nodes_of(r, size)) for r in range(size)]
    sums_of_nodes = tree.sums_of_nodes(size)
    return Order(
        shards,
        range(first, first + count),
        tree.sums_of_shards(rank, size),
        nodes,
        sums_of_nodes,
        nodes == [1] * size and sums_of_nodes == _C.ShardTree(size).sums_of_shards(0, 1),
    )


def agree(shards: int, ring: Communicator) -> None:
    """Compares the number of shards with that of all other ranks.

    Raises:
        TypeError: ``shards`` is no int.
        CollectiveMismatchError: ranks gave different numbers.
    """
    if not isinstance(shards, int):
        raise TypeError(f"shards is {shards!r}; give the number of shards")
    numbers = torch.empty(ring.size, dtype=torch.int64)
    ring.all_gather(numbers, torch.tensor([shards]))
    given = numbers.tolist()
    other = next((rank for rank, number in enumerate(given) if number != given[0]), None)
    if other is not None:
        raise CollectiveMismatchError(
            f"rank 0 adds {given[0]} shards and rank {other} adds {given[other]}: give the same "
            "number of shards on all ranks"
        )


def finished(
    total: torch.Tensor, op: Op, order: Order, out: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Divides the sum of all shards for AVG and rounds it to ``dtype``; may change ``total``.

    Returns:
        The result, in ``out`` or in ``total`` or a new tensor. All its NaNs have the same bits.
    """
    if op == dist.ReduceOp.AVG:
        # A tensor: on CUDA torch multiplies by the inverse of a number.
        total.div_(torch.full((), order.count, dtype=total.dtype, device=total.device))
    if dtype == total.dtype:
        return total if out is None else out.copy_(total)
    nan = total.isnan()
    if dtype == torch.float8_e4m3fn:  # torch 2.11 makes larger numbers NaN
        greatest = torch.finfo(dtype).max
        total.clamp_(-greatest, greatest)
    result = total.to(dtype) if out is None else out.copy_(total)
    # torch's rounding of one NaN gives several.
    bits = result.view(_INTEGERS[result.element_size()])
    bits.masked_fill_(nan, torch.iinfo(bits.dtype).max)
    return result


def _with_one_nan(total: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Copies to ``out``; all NaNs get the same bits, as in an all-reduce."""
    return torch.nan_to_num(total, nan=_NAN, posinf=torch.inf, neginf=-torch.inf, out=out)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of the sums of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _add_last(nodes: list[torch.Tensor], sums: int) -> list[torch.Tensor]:
    """Replaces the last two nodes by their sum, ``sums`` times; returns those that are left out."""
    rights = []
    for _ in range(sums):
        rights.append(nodes.pop())
        nodes[-1].add_(rights[-1])
    return rights


class ShardSum:
    """A sum of one tensor for each shard, whose bits are the same for any number of ranks.

    Shards are numbered from 0. Rank r of k has a k-th of them, :attr:`shards`; the first ranks have
    one more if k does not divide their number. Every rank adds its shards' tensors, and then all
    ranks make the same call, again and again:

    1. :meth:`add` for each of :attr:`shards`, in order;
    2. :meth:`all_reduce` or :meth:`reduce_scatter`.

    Sums of float16, bfloat16 and the 8-bit floats are kept in float32 and rounded once, at the end.
    Every NaN of a result has the same bits. A rank with n shards keeps about log2(n) tensors, at
    most twice as many.

    The tensors must not depend on the number of ranks either: compute each shard by itself, with
    the same operations, threads and kind of processor.

    Args:
        shards: how many shards there are, 1 to 1024, at least as many as ranks; the same on all
            ranks, and in every run whose bits are to be equal.
        group: the process group whose ranks divide the shards, or a :class:`Communicator`;
            ``None``: the default group. All ranks make their ``ShardSum`` together.

    Raises:
        TypeError: ``shards`` is no int.
        ValueError: ``shards`` is not 1 to 1024, or less than the number of ranks.
        CollectiveMismatchError: ranks gave different ``shards``. Also raises the errors of
            :func:`ringkern.ring_all_reduce`.
    """

    def __init__(self, shards: int, group: dist.ProcessGroup | Communicator | None = None) -> None:
        self._ring = group if isinstance(group, Communicator) else communicator_for(group)
        agree(shards, self._ring)
        self._order = order_of(shards, self._ring)
        self._kind: _Kind | None = None  # of the shards since the last result
        self._added = 0
        self._nodes = Nodes(self._order)

    @property
    def shards(self) -> range:
        """Returns the numbers of this rank's shards."""
        return self._order.shards

    def add(self, tensor: torch.Tensor) -> None:
        """Adds the tensor of this rank's next shard. Does not communicate.

        Args:
            tensor: of any shape and a float dtype, the same for all shards of all ranks, on one
                device of each rank. It may change afterwards.

        Raises:
            TypeError: not a tensor of floats.
            ValueError: shape, dtype or device differ from those of the shards before.
            CommUsageError: all shards of this rank are added.
        """
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            given = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(
                f"a shard is {given}; a ShardSum adds tensors of floats. Integers have the same "
                "sum in any order: use ring_all_reduce"
            )
        if self._added == len(self.shards):
            raise CommUsageError(
                f"rank {self._ring.rank} has added all of its {self._added} shards: call "
                "all_reduce() or reduce_scatter() first"
            )
        kind = tensor.shape, tensor.dtype, tensor.device
        if self._added == 0:
            self._kind = kind
        elif self._kind is not None and kind != self._kind:
            raise ValueError(
                f"shard {self.shards[self._added]} is {_text_of(kind)}, and the one before it "
                f"{_text_of(self._kind)}; all must be alike"
            )
        self._nodes.take(self._added, tensor.detach())
        self._added += 1

    def all_reduce(
        self, op: Op = dist.ReduceOp.SUM, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the sum of all shards, and begins the next one.

        Args:
            op: ``ReduceOp.SUM``, or ``AVG``, which divides by the number of shards.
            out: the tensor for the result, contiguous, of the shape, dtype and device of a shard;
                ``None``: a new one. With it no memory is allocated after the first sum.

        Returns:
            A tensor of the shape, dtype and device of a shard, bit-identical on all ranks and for
            any number of ranks.

        Raises:
            ValueError: another ``op``, or ``out`` is not like a shard.
            CommUsageError: a shard of this rank is missing. Also raises the errors of
                :func:`ringkern.ring_all_reduce`, after which the shards are lost.
        """
        kind = self._begin(op)
        shape, dtype, _ = kind
        if out is not None and (
            not out.is_contiguous() or (out.shape, out.dtype, out.device) != kind
        ):
            raise ValueError(f"out must be contiguous and, as the shards are, {_text_of(kind)}")
        total = self._order.total(self._ring, self._end(keep=out is not None))
        flat = None if out is None else out.view(-1)
        return finished(total, op, self._order, flat, dtype).view(shape)

    def reduce_scatter(self, op: Op = dist.ReduceOp.SUM) -> torch.Tensor:
        """Returns this rank's part of the sum of all shards, and begins the next one.

        Args:
            op: see :meth:`all_reduce`.

        Returns:
            A new tensor of one dimension: of n elements of the sum and k ranks, those from
            ``rank * n / k`` on. Each has the bits that :meth:`all_reduce` gives it.

        Raises:
            ValueError: the number of elements is no multiple of the number of ranks. Also raises
                the errors of :meth:`all_reduce`.
        """
        shape, dtype, _ = self._begin(op)
        if shape.numel() % self._ring.size != 0:
            raise ValueError(
                f"a shard has {shape.numel()} elements, which {self._ring.size} ranks cannot "
                "divide; pad it"
            )
        part = self._order.part(self._ring, self._end(keep=True))
        return finished(part, op, self._order, None, dtype)

    def _begin(self, op: Op) -> _Kind:
        if reduce_op(op) not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"op is {op}; a ShardSum has SUM and AVG")
        if self._kind is None or self._added < len(self.shards):
            raise CommUsageError(
                f"rank {self._ring.rank} has added {self._added} of its {len(self.shards)} "
                f"shards: add() each of {list(self.shards)} first"
            )
        return self._kind

    def _end(self, *, keep: bool) -> list[torch.Tensor]:
        self._added = 0
        return self._nodes.end(keep=keep)


def _text_of(kind: _Kind) -> str:
    shape, dtype, device = kind
    return f"{dtype}{list(shape)} on {device}"
