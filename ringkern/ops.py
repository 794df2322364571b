"""The collectives: what ``torch.distributed`` calls all_reduce, reduce_scatter_tensor and
all_gather_into_tensor, over the ring."""

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


# torch.compile ends one graph before such a call and begins another after it.
_outside_graph: Callable[..., dist.Work | None] = untraced(_call)
_NOT_IN_A_GRAPH = (
    "of ringkern's collectives, a graph can hold ring_all_reduce of a tensor, without async_op, "
    "and not PREMUL_SUM"
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
) -> dist.Work | None:
    """Reduces ``tensor`` over all ranks, in place; afterwards it is bit-identical on all of them.

    A drop-in for :func:`torch.distributed.all_reduce`. The first call for a group makes its
    communicator, and waits until all its ranks do. Every rank of the group calls it, in the
    same order, with a tensor of the same number of elements and the same dtype, and the same
    ``op``, ``protocol``, ``algorithm`` and ``accumulate``. Under ``torch.compile`` it is part of
    the graph, unless ``async_op`` is set or ``op`` is ``PREMUL_SUM``.

    On CUDA the call is enqueued on torch's current stream. It can be captured in a CUDA graph once
    the group has made a call on that device; all ranks replay it as often and in the same order.
    While such a graph runs, the group must have no call on another stream of that device.

    Args:
        tensor: a dense tensor of any shape and strides, on the CPU or on a CUDA device, of a dtype
            in ``ringkern.build_info()["dtypes"]``. Also a NumPy or CuPy array, or anything else
            with ``__dlpack__``, changed in place. May be empty.
        op: ``ReduceOp.SUM``, ``PRODUCT``, ``MIN``, ``MAX`` (both propagate NaN), ``AVG`` and
            ``PREMUL_SUM`` (floats), ``BAND``, ``BOR``, ``BXOR`` (integers). Each hop rounds to the
            dtype of the tensor; integers wrap.
        group: the process group; ``None``: the default one.
        async_op: return at once with a handle; the first call of a group waits for all ranks.
        protocol: ``"auto"``, or ``"simple"``, ``"ll"``, ``"ll128"``; alone, it asks for the ring.
        algorithm: ``"auto"``, or ``"ring"``, or, straight from rank to rank, ``"one_shot"`` (on a
            CPU over LL and Simple, on CUDA over LL) and ``"two_shot"`` (on a CPU over Simple, on
            CUDA over LL; by :mod:`ringkern.local` on one CUDA device over Simple, too).
        deterministic: ``"run_to_run"`` is what holds always: the same call has the same bits,
            every time. ``"size_invariant"``: the bits of an element depend on the ranks' values of
            it alone, and not on the size of the tensor, on its place there, or on the protocol;
            without the ring, whose order of addition depends on the place.
        accumulate: ``"dtype"``: partial sums are rounded to the dtype of the tensor. ``"float32"``:
            those of float16, bfloat16 and the 8-bit floats are kept in float32, and the sum is
            rounded once; without the ring. Other dtypes and ops are as they are.

    Returns:
        A ``torch.distributed.Work`` (``wait()``, ``is_completed()``, ``get_future()``) if
        ``async_op``, else ``None``.

    Raises:
        TypeError: dtype or layout that is not supported, an op that the dtype does not have, or
            what is no tensor, op or group at all.
        ValueError: unknown protocol or other name, unsupported device, elements that share memory,
            a read-only or reversed array, ``PREMUL_SUM`` without its factor, a group without this
            rank, or the ring with ``"size_invariant"`` or ``"float32"``.
        CommUsageError: torch.distributed is not initialised, or this is a forked child.
        PeerLostError: a rank died, or left before its time.
        CollectiveMismatchError: another rank makes another call.
        CollectiveTimeoutError: a rank did not come within the timeout.
        CommAbortedError: the communicator was aborted or has failed before.
        RendezvousError, TransportError: first call only: a rank did not come, or the ranks could
            not be connected.
    """
    # First, because here a small tensor's time is made of such lines.
    if not _is_traced() and _quick_all_reduce(
        tensor, op, group, async_op, protocol, algorithm, deterministic, accumulate
    ):
        return None
    way = {
        "protocol": protocol,
        "algorithm": algorithm,
        "deterministic": deterministic,
        "accumulate": accumulate,
    }
    if torch.compiler.is_compiling():
        if not async_op and functional.all_reduce_in_graph(
            tensor, op, group, algorithm, protocol, deterministic, accumulate
        ):
            return None
        torch._dynamo.graph_break(msg=_NOT_IN_A_GRAPH)
        return _outside_graph("all_reduce", group, tensor, op, async_op, **way)
    return communicator_for(group).all_reduce(tensor, op, async_op, **way)


def ring_reduce_scatter(
    output: SupportsDLPack,
    input: SupportsDLPack,
    op: Op = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    protocol: str = "auto",
) -> dist.Work | None:
    """Reduces ``input`` over all ranks and leaves this rank's part of it in ``output``.

    As :func:`torch.distributed.reduce_scatter_tensor`.

    Args:
        output: a tensor of n elements; may be this rank's part of ``input``.
        input: a tensor of n times the number of ranks elements, dtype and device of ``output``.
        op, group, async_op, protocol: as for :func:`ring_all_reduce`.

    Raises:
        ValueError: the sizes do not fit, the tensors overlap, or they are on different devices; and
            what :func:`ring_all_reduce` raises, for the same reasons.
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
    """Collects every rank's ``input`` in ``output``, in the order of the ranks.

    As :func:`torch.distributed.all_gather_into_tensor`.

    Args:
        output: a tensor of n times the number of ranks elements.
        input: a tensor of n elements, dtype and device of ``output``; may be this rank's part of
            it.
        group, async_op, protocol: as for :func:`ring_all_reduce`.

    Raises:
        ValueError: the sizes do not fit, the tensors overlap, or they are on different devices; and
            what :func:`ring_all_reduce` raises, for the same reasons.
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=_NOT_IN_A_GRAPH)
        return _outside_graph("all_gather", group, output, input, async_op, protocol=protocol)
    return communicator_for(group).all_gather(output, input, async_op, protocol=protocol)
