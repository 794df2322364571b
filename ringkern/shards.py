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

import torch
import torch.distributed as dist

from . import _C
from .arguments import Op, reduce_op
from .comm import Communicator, communicator_for
from .errors import CollectiveMismatchError, CommUsageError

_Kind = tuple[torch.Size, torch.dtype, torch.device]

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bytes of the nodes of all ranks that are added up at a time: they stay in a cache.
_GATHERED_BYTES = 1 << 20


class ShardSum:
    """A sum of one tensor for each shard, whose bits are the same for any number of ranks.

    Shards are numbered from 0. Rank r of k has a k-th of them, :attr:`shards`; the first ranks have
    one more if k does not divide their number. Every rank adds its shards' tensors, and then all
    ranks make the same call, again and again:

    1. :meth:`add` for each of :attr:`shards`, in order;
    2. :meth:`all_reduce` or :meth:`reduce_scatter`.

    Sums of float16, bfloat16 and the 8-bit floats are kept in float32 and rounded once, at the end.
    Every NaN of a result has the same bits. A rank keeps one tensor for each sum that is not
    complete: log2 of its shards, at most twice.

    The tensors must not depend on the number of ranks either: compute each shard by itself, with
    the same operations, threads and kind of processor.

    Args:
        shards: how many shards there are, 1 to 1024, at least as many as ranks; the same on all
            ranks, and in every run whose bits are to be equal.
        group: the process group whose ranks divide the shards, or a :class:`Communicator`;
            ``None``: the default group. All ranks make their ``ShardSum`` together.

    Raises:
        ValueError: ``shards`` is not 1 to 1024, or less than the number of ranks.
        CollectiveMismatchError: ranks gave different ``shards``. Also raises the errors of
            :func:`ringkern.ring_all_reduce`.
    """

    def __init__(self, shards: int, group: dist.ProcessGroup | Communicator | None = None) -> None:
        self._ring = group if isinstance(group, Communicator) else communicator_for(group)
        self._count = shards
        rank, size = self._ring.rank, self._ring.size
        self._check_alike()
        tree = _C.ShardTree(shards)
        if size > shards:
            raise ValueError(
                f"{shards} shards are too few for {size} ranks: each rank needs one; give at least "
                f"{size}, or use fewer ranks"
            )
        first, count = tree.run_of(rank, size)
        self._shards = range(first, first + count)
        self._sums_of_shards = tree.sums_of_shards(rank, size)
        self._sums_of_nodes = tree.sums_of_nodes(size)
        self._nodes = [len(tree.nodes_of(r, size)) for r in range(size)]
        # True if one all-reduce adds the nodes in the order of the tree: from rank 0 up, which
        # several hosts do with two ranks only.
        self._is_chain = (
            self._nodes == [1] * size
            and self._sums_of_nodes == [0, 1, 1][:size]
            and (size <= 2 or self._ring.hosts.count == 1)
        )
        self._kind: _Kind | None = None  # of the shards since the last result
        self._added = 0
        self._open: list[torch.Tensor] = []  # the sums that wait for the next shard

    def _check_alike(self) -> None:
        numbers = torch.empty(self._ring.size, dtype=torch.int64)
        self._ring.all_gather(numbers, torch.tensor([self._count]))
        given = numbers.tolist()
        other = next((rank for rank, n in enumerate(given) if n != given[0]), None)
        if other is not None:
            raise CollectiveMismatchError(
                f"rank 0 makes a ShardSum of {given[0]} shards and rank {other} one of "
                f"{given[other]}: give the same number on all ranks"
            )

    @property
    def shards(self) -> range:
        """Returns the numbers of this rank's shards."""
        return self._shards

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
        if self._added == len(self._shards):
            raise CommUsageError(
                f"rank {self._ring.rank} has added all of its shards ({self._added} of "
                f"{self._count}): call all_reduce() or reduce_scatter() first"
            )
        kind = tensor.shape, tensor.dtype, tensor.device
        if self._added == 0:
            self._kind = kind
        elif kind != self._kind:
            raise ValueError(
                f"shard {self._shards[self._added]} is {_text_of(kind)}, and the one before it "
                f"{_text_of(self._kind)}; all must be alike"
            )
        tensor = tensor.detach()
        sums = self._sums_of_shards[self._added]
        if sums == 0:
            new = torch.empty(tensor.shape, dtype=_wide(tensor.dtype), device=tensor.device)
            self._open.append(new.copy_(tensor))
        else:
            self._open[-1].add_(tensor.to(self._open[-1].dtype))
            _add_last(self._open, sums - 1)
        self._added += 1

    def all_reduce(self, op: Op = dist.ReduceOp.SUM) -> torch.Tensor:
        """Returns the sum of all shards, and begins the next one.

        Args:
            op: ``ReduceOp.SUM``, or ``AVG``, which divides by the number of shards.

        Returns:
            A new tensor of the shape, dtype and device of a shard, bit-identical on all ranks and
            for any number of ranks.

        Raises:
            ValueError: another ``op``.
            CommUsageError: a shard of this rank is missing. Also raises the errors of
                :func:`ringkern.ring_all_reduce`, after which the shards are lost.
        """
        shape, dtype, _ = self._begin(op)
        return _finished(self._total(), op, self._count, dtype).view(shape)

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
        shape, dtype, device = self._begin(op)
        rank, size = self._ring.rank, self._ring.size
        if shape.numel() % size != 0:
            raise ValueError(
                f"a shard has {shape.numel()} elements, which {size} ranks cannot divide; pad it"
            )
        n = shape.numel() // size
        if size == 2 and self._is_chain:  # a + b is b + a, so that a ring gives the same bits
            [node], part = self._take(), torch.empty(n, dtype=_wide(dtype), device=device)
            self._ring.reduce_scatter(part, node)
        else:
            part = self._total().narrow(0, rank * n, n).clone()
        return _finished(part, op, self._count, dtype)

    def _begin(self, op: Op) -> _Kind:
        if reduce_op(op) not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"op is {op}; a ShardSum has SUM and AVG")
        if self._kind is None or self._added < len(self._shards):
            raise CommUsageError(
                f"rank {self._ring.rank} has added {self._added} of its {len(self._shards)} "
                f"shards: add() each of {list(self._shards)} first"
            )
        return self._kind

    def _take(self) -> list[torch.Tensor]:
        """Returns this rank's nodes, flat, and forgets them."""
        nodes = [node.view(-1) for node in self._open]
        self._added, self._open = 0, []
        return nodes

    def _total(self) -> torch.Tensor:
        """Returns the sum of the nodes of all ranks, in float32 or float64."""
        nodes = self._take()
        if not self._is_chain:
            return self._gathered_total(nodes)
        [total] = nodes
        self._ring.all_reduce(total, deterministic="size_invariant")
        return total

    def _gathered_total(self, nodes: list[torch.Tensor]) -> torch.Tensor:
        """Returns the same. All ranks receive all nodes, a part of their elements at a time, and
        add them up.
        """
        size, most, n = self._ring.size, max(self._nodes), nodes[0].numel()
        total = nodes[0]  # each part of it is replaced after it was sent
        each = max(1, min(n, _GATHERED_BYTES // (size * most * total.element_size())))
        mine, all_ranks = total.new_empty(most * each), total.new_empty(size * most * each)
        for first in range(0, n, each):
            count = min(each, n - first)
            sent = mine[: most * count].view(most, count)
            for row, node in zip(sent, nodes):
                row.copy_(node[first : first + count])
            rows = all_ranks[: size * most * count].view(size, most, count)
            self._ring.all_gather(rows, sent)
            received = (rows[rank, i] for rank in range(size) for i in range(self._nodes[rank]))
            open_nodes: list[torch.Tensor] = []
            for node, sums in zip(received, self._sums_of_nodes, strict=True):
                open_nodes.append(node)
                _add_last(open_nodes, sums)
            total[first : first + count] = open_nodes[0]
        return total


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of the sums of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _text_of(kind: _Kind) -> str:
    shape, dtype, device = kind
    return f"{dtype}{list(shape)} on {device}"


def _add_last(nodes: list[torch.Tensor], sums: int) -> None:
    """Replaces the last two nodes by their sum, ``sums`` times."""
    for _ in range(sums):
        right = nodes.pop()
        nodes[-1].add_(right)


def _finished(total: torch.Tensor, op: Op, shards: int, dtype: torch.dtype) -> torch.Tensor:
    """Divides a sum for AVG and rounds it to ``dtype``; may change it."""
    if op == dist.ReduceOp.AVG:
        # A tensor: on CUDA torch multiplies by the inverse of a number.
        total.div_(torch.tensor(float(shards), dtype=total.dtype, device=total.device))
    nan = total.isnan()
    if dtype == torch.float8_e4m3fn:  # has no infinity
        greatest = torch.finfo(dtype).max
        total.clamp_(-greatest, greatest)
    result = total.to(dtype)
    # torch's additions keep the bits of one of two NaNs, and its rounding makes different ones.
    bits = result.view(_INTEGERS[result.element_size()])
    bits.masked_fill_(nan, torch.iinfo(bits.dtype).max)
    return result
