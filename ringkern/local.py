"""Rings whose ranks are all in this process: one tensor per rank, on the CPU or on CUDA devices.

>>> import torch
>>> from ringkern import local
>>> tensors = [torch.full((3,), rank + 1.0) for rank in range(4)]
>>> local.ring_all_reduce(tensors)
>>> tensors[0]
tensor([10., 10., 10.])

Needs no process group and no launcher. Several ranks may share a device, so that a program of many
ranks can be developed on one GPU or on none.

On CUDA one launch runs all ranks of a device, on torch's current stream of that device; the call
returns once it is enqueued. Between devices the ring uses host memory, or peer access, which it
enables. A CUDA graph can capture the call if the ring exists: make a :class:`Ring`, or call once
outside of the graph. With ranks on several devices, the capture must include their streams: let
each wait for an event of the capturing stream, and the capturing stream for an event of each at the
end.

On the CPU each rank has a thread, and the call returns with the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from . import _C
from .arguments import Op, SupportsDLPack, all_reduce_way, as_tensor, protocol_name, reduce_op
from .choose import tables
from .comm import open_rings
from .config import config, timeout_seconds
from .errors import CommUsageError, RingKernError
from .groups import untraced

DeviceLike = torch.device | str | int


class Ring:
    """A ring of ranks in this process.

    Most programs need none: :func:`ring_all_reduce` makes and keeps one for each list of devices. A
    ``Ring`` can be closed, aborted and given a timeout, and has reduce-scatter and all-gather.
    Usable as a context manager, which closes it. Calls from several threads run one after another.

    Args:
        devices: the device of each rank, in the order of the ring; a device may occur several
            times. All are the CPU, or all are CUDA devices; neighbours in the ring need access to
            each other's memory. A number is a CUDA device. On CUDA a rank takes up to 30 MiB of
            device memory until the ring is closed, and up to 16 MiB where four or more ranks share
            a device. All ranks of a device must fit on it at once.
        timeout: how long a rank waits for a neighbour before the call, or on CUDA a later one,
            raises :class:`~ringkern.errors.CollectiveTimeoutError`; ``None``:
            ``RINGKERN_TIMEOUT``, or 600 s.

    Raises:
        ValueError: no devices, or an unsupported one; CPU and CUDA in one ring; a timeout that is
            not positive.
        CommUsageError: more ranks than fit on a device at once. On CUDA also: the current stream
            captures a graph, or several devices with ``CUDA_LAUNCH_BLOCKING``.
        TransportError: the device does not exist or has no free memory, or two neighbours have no
            access to each other's memory.
    """

    def __init__(self, devices: Iterable[DeviceLike], timeout: timedelta | None = None) -> None:
        if isinstance(devices, (str, int, torch.device)):
            raise TypeError(f"devices is {devices!r}; give a list with a device for each rank")
        timeout_s = timeout_seconds(timeout)
        self._devices = tuple(_device(device) for device in devices)
        _check_cuda(self._devices)
        self._pid = os.getpid()
        self._c = _C.LocalRing(
            [str(device) for device in self._devices], timeout_s, config.on_fault
        )
        kind = self._devices[0].type
        one_device = kind == "cuda" and len(set(self._devices)) == 1
        self._c.set_table(tables.table(kind, self.size, one_device))
        open_rings.add(self)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Returns the device of each rank."""
        return self._devices

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return len(self._devices)

    def all_reduce(
        self,
        tensors: Iterable[SupportsDLPack],
        op: Op = dist.ReduceOp.SUM,
        protocol: str = "auto",
        algorithm: str = "auto",
        *,
        deterministic: str = "auto",
        accumulate: str = "auto",
        shards: int | None = None,
    ) -> None:
        """See :func:`ring_all_reduce`."""
        self._check_process()
        tensors = _as_tensors(tensors, "tensors", written=True)
        numerics = algorithm, protocol, deterministic, accumulate
        self._c.all_reduce(*_reduction(tensors, op, *numerics, shards))

    def reduce_scatter(
        self,
        outputs: Iterable[SupportsDLPack],
        inputs: Iterable[SupportsDLPack],
        op: Op = dist.ReduceOp.SUM,
        protocol: str = "auto",
    ) -> None:
        """Reduces the inputs of all ranks and writes each rank's part of the result to its output.

        Args:
            outputs: for each rank a tensor of n elements; may be that rank's part of its input.
            inputs: for each rank a tensor of n * (number of ranks) elements.
            op, protocol: see :func:`ring_all_reduce`.

        Raises:
            ValueError: the sizes do not match. Also raises the errors of :func:`ring_all_reduce`.
        """
        self._check_process()
        outputs = _as_tensors(outputs, "outputs", written=True)
        inputs = _as_tensors(inputs, "inputs", written=False)
        self._c.reduce_scatter(outputs, inputs, reduce_op(op), protocol_name(protocol))

    def all_gather(
        self,
        outputs: Iterable[SupportsDLPack],
        inputs: Iterable[SupportsDLPack],
        protocol: str = "auto",
    ) -> None:
        """Gathers the inputs of all ranks into every output, in rank order.

        Args:
            outputs: for each rank a tensor of n * (number of ranks) elements.
            inputs: for each rank a tensor of n elements; may be that rank's part of its output.
            protocol: see :func:`ring_all_reduce`.

        Raises:
            ValueError: the sizes do not match. Also raises the errors of :func:`ring_all_reduce`.
        """
        self._check_process()
        outputs = _as_tensors(outputs, "outputs", written=True)
        inputs = _as_tensors(inputs, "inputs", written=False)
        self._c.all_gather(outputs, inputs, protocol_name(protocol))

    def abort(self, reason: str = "abort() was called") -> None:
        """Ends every call in progress, on CUDA also launched ones, with CommAbortedError.

        May be called from any thread, any number of times. The ring is unusable afterwards: its
        calls raise CommAbortedError, which quotes ``reason``.
        """
        self._c.abort(reason)

    def close(self) -> None:
        """Finishes the calls that were made, then frees memory and ends threads.

        May be called any number of times. Later collectives raise
        :class:`~ringkern.errors.CommUsageError`.
        """
        self._c.close()
        open_rings.discard(self)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise CommUsageError(
                f"this ring was made in process {self._pid} and is used in process {os.getpid()}, "
                "a forked child; make a new ring in the child"
            )

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ringkern.local.Ring on {', '.join(map(str, self._devices))}>"


def ring_all_reduce(
    tensors: Iterable[SupportsDLPack],
    op: Op = dist.ReduceOp.SUM,
    protocol: str = "auto",
    algorithm: str = "auto",
    *,
    deterministic: str = "auto",
    accumulate: str = "auto",
    shards: int | None = None,
) -> None:
    """Reduces ``tensors``, one for each rank, in place; afterwards they are bit-identical.

    Does in one call what :func:`ringkern.ring_all_reduce` does on each rank of a group; on a CPU
    the results have the same bits. The first call makes the ring over the tensors' devices and
    keeps it; on CUDA it takes up to 30 MiB of device memory per rank. Where all ranks are on one
    CUDA device, ``"auto"`` reduces the tensors in place, by ``"two_shot"`` over ``"simple"``. Use a
    :class:`Ring` to close it.

    Args:
        tensors: one for each rank, in the order of the ring, with the same number of elements and
            dtype; see :func:`ringkern.ring_all_reduce`. All are on the CPU, or all on CUDA devices;
            several may be on one device. They must not share memory.
        op, protocol, algorithm, deterministic, accumulate, shards: see
            :func:`ringkern.ring_all_reduce`.

    Raises:
        TypeError: see :func:`ringkern.ring_all_reduce`; also if dtypes differ, or for one tensor
            instead of a list.
        ValueError: see :func:`ringkern.ring_all_reduce`; also for an empty list, different sizes,
            CPU and CUDA tensors in one list, or tensors that share memory.
        CommUsageError, TransportError: first call only: see :class:`Ring`.
        CollectiveTimeoutError: on CUDA: a rank waited too long in an earlier call.
    """
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg="ringkern.local cannot be part of a graph")
        _outside_graph(tensors, op, algorithm, protocol, deterministic, accumulate, shards)
        return
    _ring_all_reduce(tensors, op, algorithm, protocol, deterministic, accumulate, shards)


def _ring_all_reduce(
    tensors: Iterable[SupportsDLPack],
    op: Op,
    algorithm: str,
    protocol: str,
    deterministic: str,
    accumulate: str,
    shards: int | None,
) -> None:
    reduced = _as_tensors(tensors, "tensors", written=True)
    # Checked before the ring is made: a call with wrong arguments must not keep a ring's memory.
    devices = tuple(tensor.device for tensor in reduced)
    call = _reduction(reduced, op, algorithm, protocol, deterministic, accumulate, shards)
    key = os.getpid(), devices
    ring = _rings.get(key)
    if ring is None:
        if not reduced:
            raise ValueError("tensors is empty; give one tensor for each rank")
        # Another thread may have made one: all must use the same.
        ring = _rings.setdefault(key, Ring(devices))
    try:
        ring._c.all_reduce(*call)
    except CommUsageError:
        raise  # the program ends
    except RingKernError:
        # A failed ring is unusable, and the caller has no handle: the next call makes a new one.
        if _rings.get(key) is ring:
            del _rings[key]
        raise


_outside_graph: Callable[..., None] = untraced(_ring_all_reduce)

# The process is part of the key because a forked child must make its own rings.
_rings: dict[tuple[int, tuple[torch.device, ...]], Ring] = {}


def _reduction(
    tensors: list[torch.Tensor],
    op: Op,
    algorithm: str,
    protocol: str,
    deterministic: str,
    accumulate: str,
    shards: int | None,
) -> tuple[Any, ...]:
    """Returns the arguments of the extension's all-reduce."""
    op = reduce_op(op)
    way = all_reduce_way(
        algorithm,
        protocol,
        deterministic,
        accumulate,
        shards=shards,
        ranks=len(tensors),
        tensor=tensors[0] if tensors else None,
        op=op,
    )
    return tensors, op, *way


def _device(device: DeviceLike) -> torch.device:
    made = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if made.type == "cuda" and made.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return torch.device("cpu") if made.type == "cpu" else made


def _check_cuda(devices: tuple[torch.device, ...]) -> None:
    """Raises the errors that would otherwise stop the extension while it makes the ring."""
    cuda = {device for device in devices if device.type == "cuda"}
    if not cuda or not torch.cuda.is_available():
        return
    if torch.cuda.is_current_stream_capturing():
        raise CommUsageError(
            "a ring cannot be made while a CUDA graph is captured, because it takes device memory: "
            "make a ringkern.local.Ring before the capture, or call once outside of the graph"
        )
    if len(cuda) > 1 and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        raise CommUsageError(
            "CUDA_LAUNCH_BLOCKING is set: each launch would wait for its kernel to end, and the "
            "kernel needs the launch on the next device. Unset it, or put all ranks on one device"
        )


def _as_tensors(
    arrays: Iterable[SupportsDLPack], role: str, *, written: bool
) -> list[torch.Tensor]:
    if isinstance(arrays, torch.Tensor) or not isinstance(arrays, Iterable):
        raise TypeError(
            f"{role} is {type(arrays).__name__}; give a list of tensors, one for each rank"
        )
    return [as_tensor(a, f"{role}[{r}]", written=written) for r, a in enumerate(arrays)]
