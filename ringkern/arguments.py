"""Arguments of the collectives before they reach the extension: arrays of other libraries become
tensors, and what is no argument at all gets an error that says what to do. Dtypes, devices and
shapes are checked by the extension."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from . import _C
from .config import ACCUMULATE, ALGORITHMS, DETERMINISTIC, PROTOCOLS, config

Op = dist.ReduceOp | dist.ReduceOp.RedOpType


class SupportsDLPack(Protocol):
    """What a collective takes for a tensor: one of torch, NumPy, CuPy or any other library.

    Its memory is used as it is, by `DLPack <https://dmlc.github.io/dlpack/latest/>`_.
    """

    def __dlpack__(self) -> Any: ...


_FACTOR = "torch.distributed._make_nccl_premul_sum(factor)"


def as_tensor(array: SupportsDLPack, role: str, *, written: bool) -> torch.Tensor:
    """``array`` itself, or a tensor over the same memory."""
    if isinstance(array, torch.Tensor):
        return array
    kind = type(array).__name__
    if not hasattr(array, "__dlpack__"):
        raise TypeError(
            f"{role} is {kind}; give a torch.Tensor, or an array with __dlpack__ (NumPy, CuPy), "
            "which is changed in place"
        )
    # torch would write to it all the same.
    if written and getattr(getattr(array, "flags", None), "writeable", True) is False:
        raise ValueError(f"{role} is a read-only {kind}, and the result goes there; give a copy")
    # torch ends the process on these.
    if any(stride < 0 for stride in getattr(array, "strides", None) or ()):
        raise ValueError(f"{role} is a reversed {kind} (a stride is negative); give a copy")
    try:
        return torch.from_dlpack(array)
    except BufferError as error:
        raise ValueError(
            f"the memory of {role}, a {kind}, cannot be shared ({error}); it must be writable, in "
            "native byte order and of a dtype that torch has"
        ) from error


def reduce_op(op: Op) -> Op:
    """``op``, if it is one."""
    if type(op) is dist.ReduceOp.RedOpType:
        if op is dist.ReduceOp.PREMUL_SUM:
            raise ValueError(f"ReduceOp.PREMUL_SUM needs a factor; make it with {_FACTOR}")
    elif not isinstance(op, dist.ReduceOp):
        raise TypeError(
            f"op is {op!r}; give a torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, "
            f"BOR, BXOR, or {_FACTOR}"
        )
    return op


def protocol_name(protocol: str) -> str:
    """``protocol``, or what the environment says in its place."""
    return _named("protocol", protocol, PROTOCOLS, config.protocol)


def way_asked(
    algorithm: str, protocol: str, deterministic: str, accumulate: str, device: str = "cpu"
) -> tuple[str, str, bool, bool]:
    """What the extension is asked for, with what the environment says in the place of "auto".

    A value of the environment that contradicts the arguments does not count.

    Returns:
        algorithm, protocol, whether each element is to be combined in the order of the ranks, and
        whether in float32.
    """
    given = {
        "algorithm": _named("algorithm", algorithm, ALGORITHMS, "auto"),
        "protocol": _named("protocol", protocol, PROTOCOLS, "auto"),
        "deterministic": _named("deterministic", deterministic, DETERMINISTIC, "auto"),
        "accumulate": _named("accumulate", accumulate, ACCUMULATE, "auto"),
    }
    asked = given
    if not config.leaves_all_open:
        asked = {
            what: _of_environment(what, given, device) if name == "auto" else name
            for what, name in given.items()
        }
    return _as_the_extension_takes(asked)


def _of_environment(what: str, given: dict[str, str], device: str) -> str:
    name: str = getattr(config, what)
    there = _C.is_there(device, *_as_the_extension_takes({**given, what: name}))
    return name if there else "auto"


def _as_the_extension_takes(asked: dict[str, str]) -> tuple[str, str, bool, bool]:
    return (
        asked["algorithm"],
        asked["protocol"],
        asked["deterministic"] == "size_invariant",
        asked["accumulate"] == "float32",
    )


def _named(what: str, name: str, names: tuple[str, ...], from_environment: str) -> str:
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(names)}")
    return from_environment if name == "auto" else name
