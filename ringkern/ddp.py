"""DistributedDataParallel with weights that do not depend on the number of ranks."""

# DistributedDataParallel compares the annotations of a hook with types, not with their names.

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _C
from .comm import Communicator, communicator_for
from .shards import Nodes, Order, agree, finished, order_of


def world_invariant_hook(model: DistributedDataParallel, shards: int) -> range:
    """Averages the gradients of ``shards`` microbatches in one order, on any number of ranks.

    Registers a communication hook. From then on a step is a forward and a backward pass for each of
    this rank's shards, in order, and then the optimizer. The gradients are zero until the last
    backward pass of a step, which makes them the average over the shards of all ranks: the one of
    :meth:`ringkern.ShardSum.all_reduce` with ``AVG``. Set the gradients to zero before a step. ::

        model = DistributedDataParallel(model)
        mine = ringkern.ddp.world_invariant_hook(model, 8)
        for batch in batches:
            optimizer.zero_grad()
            for shard in mine:
                loss_of(model, batch[shard::8]).backward()
            optimizer.step()

    A rank with n shards keeps about log2(n) copies of the gradients, at most twice as many, in
    float32 or float64.

    Args:
        model: the module, before its first backward pass; all ranks of its group call this.
        shards: how many microbatches a step has, as in :class:`ringkern.ShardSum`.

    Returns:
        The numbers of this rank's shards.

    Raises:
        TypeError: ``model`` is no ``DistributedDataParallel``.
        ValueError: ``shards`` is out of range; some ranks have one shard and others two; ranks have
            unequal numbers, and ``model`` has buffers and ``broadcast_buffers``, or
            ``static_graph``; or it has ``find_unused_parameters``.
        CollectiveMismatchError: ranks gave different ``shards``. Also raises the errors of
            :func:`ringkern.ring_all_reduce`.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"model is {type(model).__name__}; give a DistributedDataParallel")
    if model.find_unused_parameters:
        # Where no rank's last shard uses a parameter, DDP leaves its gradient as it is: zero.
        raise ValueError(
            "find_unused_parameters loses the gradients of a parameter that the last shard does "
            "not use: leave it out, and use each parameter in each shard"
        )
    ring = communicator_for(model.process_group)
    agree(shards, ring)
    order = order_of(shards, ring)
    tree = _C.ShardTree(shards)
    each = [tree.run_of(rank, ring.size)[1] for rank in range(ring.size)]
    if min(each) == 1 < max(each):
        # DDP makes its buckets anew, together with all ranks, before its second forward pass.
        raise ValueError(
            f"{shards} shards on {ring.size} ranks are {each[0]} on some and 1 on others, which "
            f"DistributedDataParallel cannot have: give {ring.size} shards, or {2 * ring.size} or "
            "more"
        )
    if min(each) < max(each) and (model.will_sync_module_buffers() or model.static_graph):
        raise ValueError(
            f"{shards} shards on {ring.size} ranks are {each[0]} on some and {each[-1]} on others, "
            "and DistributedDataParallel communicates in each pass for static_graph, and for "
            "buffers: make it with static_graph=False, broadcast_buffers=False, or give a multiple "
            "of the ranks"
        )
    model.register_comm_hook(ring, _Hook(ring, order).average)
    return order.shards


class _Hook:
    """The hook, with the sums of this rank's shards that are not complete, for each parameter.

    Buckets have none: DDP makes them anew after the first backward pass.
    """

    def __init__(self, ring: Communicator, order: Order) -> None:
        self._ring, self._order = ring, order
        self._nodes: dict[torch.Tensor, Nodes] = {}
        self._at = 0  # the number of this backward pass's shard, among this rank's

    def average(
        self, state: Communicator, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        result = bucket.buffer()
        # Gradients of all shards but the first were added to zeros, which turns -0 into 0.
        result.add_(0.0)
        if self._order.count == self._ring.size and self._ring.adds_by_tree:
            count = self._order.count
            self._ring.all_reduce(
                result, dist.ReduceOp.AVG, deterministic="world_invariant", shards=count
            )
            return _future_of(result)
        nodes = [self._nodes.setdefault(one, Nodes(self._order)) for one in bucket.parameters()]
        for of_parameter, gradient in zip(nodes, bucket.gradients(), strict=True):
            of_parameter.take(self._at, gradient)
        if self._at + 1 < len(self._order.shards):
            result.zero_()
        else:
            rows = zip(*(of_parameter.end(keep=True) for of_parameter in nodes))
            total = self._order.total(self._ring, [torch.cat(row) for row in rows])
            finished(total, dist.ReduceOp.AVG, self._order, result, result.dtype)
        if bucket.is_last():
            self._at = (self._at + 1) % len(self._order.shards)
        return _future_of(result)


def _future_of(result: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(result)
    return done
