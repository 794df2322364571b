"""The collectives: all_reduce, reduce_scatter_tensor and all_gather_into_tensor of
``torch.distributed``, over the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _C, functional
from .arguments import Op, SupportsDLPack
from .comm import communicator_for
from .groups import untraced

_is_traced = torch.compiler.is_dynamo_compiling
_quick_all_reduce = _C.quick_all_reduce


def _call(
    collective: str, group: dist.ProcessGroup | None, *args: Any, **kwargs: Any
) -> dist.Work | None:
    work: dist.Work | None = getattr(communicator_for(group), collective)(*args, **kwargs)
    return work


# torch.compile ends the graph before such a call.
_outside_graph: Callable[..., dist.Work | None] = untraced(_call)
_NOT_IN_A_GRAPH = (
    "torch.compile can capture only one of ringkern's collectives: ring_all_reduce of a "
    "torch.Tensor, without async_op and shards, with an op other than PREMUL_SUM"
)


def ring_all_reduce(
    tensor: SupportsDLPack,
    op: Op = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    protocol: str = "auto",
    algorithm: str = "auto",
    deterministic: str = "auto",
    accumulate: str = "auto",
    shards: int | None = None,
) -> dist.Work | None:
    """Reduces ``tensor`` over all ranks, in place; the result is bit-identical on all of them.

    A drop-in replacement for :func:`torch.distributed.all_reduce`. The first call for a group makes
    its communicator and waits for all ranks of the group. Every rank of the group makes the same
    calls in the same order: the same number of elements, dtype, ``op``, ``protocol``, ``algorithm``
    and ``accumulate``. ``torch.compile`` captures the call in the graph, unless ``async_op`` or
    ``shards`` is set or ``op`` is ``PREMUL_SUM``.

    On CUDA the call is enqueued on torch's current stream. It can be captured in a CUDA graph once
    the group has made a call on that device. All ranks must replay the graph equally often and in
    the same order. While the graph runs, the group must make no call on another stream of that
    device.

    Args:
        tensor: a dense tensor of any shape and strides, on the CPU or on a CUDA device, of a dtype
            in ``ringkern.build_info()["dtypes"]``. A NumPy or CuPy array, or any other object with
            ``__dlpack__``, is also accepted and changed in place. May be empty.
        op: ``ReduceOp.SUM``, ``PRODUCT``, ``MIN``, ``MAX`` (both propagate NaN), ``AVG`` and
            ``PREMUL_SUM`` (floats), ``BAND``, ``BOR``, ``BXOR`` (integers). Each hop rounds to the
            dtype of the tensor; integers wrap.
        group: the process group; ``None``: the default group.
        async_op: returns at once with a handle. The first call of a group still waits for all
            ranks.
        protocol: ``"auto"``, ``"simple"``, ``"ll"`` or ``"ll128"``. A protocol without an
            ``algorithm`` selects the ring.
        algorithm: ``"auto"``, ``"ring"``, or one of two that send directly from rank to rank:
            ``"one_shot"`` (on a CPU over LL and Simple, on CUDA over LL) and ``"two_shot"`` (on a
            CPU over Simple, on CUDA over LL; :mod:`ringkern.local` on one CUDA device also over
            Simple).
        deterministic: ``"run_to_run"`` always holds: the same call gives the same bits every time.
            ``"size_invariant"``: the bits of an element depend only on the ranks' values of that
            element, not on the size of the tensor, the position in it or the protocol. This
            excludes the ring, whose order of addition depends on the position.
            ``"world_invariant"``: the bits are also those of :class:`ringkern.ShardSum` with rank
            r's tensor as shard r, which any smaller number of ranks can repeat. For ranks of one
            host.
        accumulate: ``"dtype"``: partial sums are rounded to the dtype of the tensor. ``"float32"``:
            partial sums of float16, bfloat16 and the 8-bit floats are kept in float32, and the sum
            is rounded once. This excludes the ring. It does not affect other dtypes and ops.
            ``"world_invariant"`` implies ``"float32"`` for sums.
        shards: with ``"world_invariant"``: the number of shards, which must be that of the ranks.

    Returns:
        A ``torch.distributed.Work`` (``wait()``, ``is_completed()``, ``get_future()``) if
        ``async_op``, else ``None``.

    Raises:
        TypeError: unsupported dtype or layout, an op that the dtype does not have, or an argument
            that is no tensor, op or group.
        ValueError: unknown protocol or other name, unsupported device, elements that share memory,
            a read-only or reversed array, ``PREMUL_SUM`` without its factor, a group without this
            rank, the ring with ``"size_invariant"``, ``"world_invariant"`` or ``"float32"``; or
            ``"world_invariant"`` with other ``shards`` than ranks, several hosts (use
            :class:`ringkern.ShardSum`), or a ``PRODUCT`` of floats.
        CommUsageError: torch.distributed is not initialised, or this is a forked child.
        PeerLostError: a rank died, or left while others still call.
        CollectiveMismatchError: another rank made a different call.
        CollectiveTimeoutError: a rank did not make the call within the timeout.
        CommAbortedError: the communicator was aborted or has failed before.
        RendezvousError, TransportError: first call only: a rank is missing, or the ranks could not
            be connected.
    """
    # Tried first, because each line of Python adds to the latency of a small tensor.
    if not _is_traced() and _quick_all_reduce(
        tensor, op, group, async_op, protocol, algorithm, deterministic, accumulate, shards
    ):
        return None
    way = {
        "protocol": protocol,
        "algorithm": algorithm,
        "deterministic": deterministic,
        "accumulate": accumulate,
    }
    if torch.compiler.is_compiling():
        by_tree = deterministic == "world_invariant" or shards is not None
        if not (async_op or by_tree) and functional.all_reduce_in_graph(
            tensor, op, group, algorithm, protocol, deterministic, accumulate
        ):
            return None
        torch._dynamo.graph_break(msg=_NOT_IN_A_GRAPH)
        return _outside_graph("all_reduce", group, tensor, op, async_op, shards=shards, **way)
    return communicator_for(group).all_reduce(tensor, op, async_op, shards=shards, **way)


def ring_reduce_scatter(
    output: SupportsDLPack,
    input: SupportsDLPack,
    op: Op = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    protocol: str = "auto",
) -> dist.Work | None:
    """Reduces ``input`` over all ranks and writes this rank's part of the result to ``output``.

    A replacement for :func:`torch.distributed.reduce_scatter_tensor`.

    Args:
        output: a tensor of n elements; may be this rank's part of ``input``.
        input: a tensor of n * (number of ranks) elements, dtype and device of ``output``.
        op, group, async_op, protocol: see :func:`ring_all_reduce`.

    Returns:
        A ``torch.distributed.Work`` if ``async_op``, else ``None``.

    Raises:
        ValueError: the sizes do not match, the tensors overlap, or they are on different devices.
            Also raises the errors of :func:`ring_all_reduce`.
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=_NOT_IN_A_GRAPH)
        return _outside_graph(
            "reduce_scatter", group, output, input, op, async_op, protocol=protocol
        )
    return communicator_for(group).reduce_scatter(output, input, op, async_op, protocol=protocol)


def ring_all_gather(
    output: SupportsDLPack,
    input: SupportsDLPack,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    protocol: str = "auto",
) -> dist.Work | None:
    """Gathers every rank's ``input`` into ``output``, in rank order.

    A replacement for :func:`torch.distributed.all_gather_into_tensor`.

    Args:
        output: a tensor of n * (number of ranks) elements.
        input: a tensor of n elements, dtype and device of ``output``; may be this rank's part of
            ``output``.
        group, async_op, protocol: see :func:`ring_all_reduce`.

    Returns:
        A ``torch.distributed.Work`` if ``async_op``, else ``None``.

    Raises:
        ValueError: the sizes do not match, the tensors overlap, or they are on different devices.
            Also raises the errors of :func:`ring_all_reduce`.
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=_NOT_IN_A_GRAPH)
        return _outside_graph("all_gather", group, output, input, async_op, protocol=protocol)
    return communicator_for(group).all_gather(output, input, async_op, protocol=protocol)
