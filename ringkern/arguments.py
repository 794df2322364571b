"""Prepares the arguments of collectives for the extension: makes tensors of arrays of other
libraries, and checks types. The extension checks dtypes, devices and shapes."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from . import _C
from .config import ACCUMULATE, ALGORITHMS, DETERMINISTIC, PROTOCOLS, config

Op = dist.ReduceOp | dist.ReduceOp.RedOpType


class SupportsDLPack(Protocol):
    """A tensor or array of torch, NumPy, CuPy or another library, as an argument of a collective.

    Its memory is used in place, by `DLPack <https://dmlc.github.io/dlpack/latest/>`_.
    """

    def __dlpack__(self) -> Any: ...


_FACTOR = "torch.distributed._make_nccl_premul_sum(factor)"


def as_tensor(array: SupportsDLPack, role: str, *, written: bool) -> torch.Tensor:
    """Returns ``array`` itself, or a tensor over the same memory."""
    if isinstance(array, torch.Tensor):
        return array
    kind = type(array).__name__
    if not hasattr(array, "__dlpack__"):
        raise TypeError(
            f"{role} is {kind}; give a torch.Tensor, or an array with __dlpack__ (NumPy, CuPy), "
            "which is changed in place"
        )
    # torch ignores the flag and would write to it.
    if written and getattr(getattr(array, "flags", None), "writeable", True) is False:
        raise ValueError(
            f"{role} is a read-only {kind}, and the result is written to it; give a copy"
        )
    # torch ends the process on a negative stride.
    if any(stride < 0 for stride in getattr(array, "strides", None) or ()):
        raise ValueError(f"{role} is a reversed {kind} (a stride is negative); give a copy")
    try:
        return torch.from_dlpack(array)
    except BufferError as error:
        raise ValueError(
            f"the memory of {role}, a {kind}, cannot be shared ({error}); give an array that is "
            "writable, in native byte order and of a dtype that torch has"
        ) from error


def reduce_op(op: Op) -> Op:
    """Returns ``op``, if it is a valid one."""
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
    """Returns ``protocol``, or in place of "auto" the value of the environment."""
    return _named("protocol", protocol, PROTOCOLS, config.protocol)


def way_asked(
    algorithm: str, protocol: str, deterministic: str, accumulate: str, device: str = "cpu"
) -> tuple[str, str, bool, bool]:
    """Replaces "auto" by the values of the environment, for the extension.

    A value of the environment that contradicts the arguments is ignored.

    Returns:
        algorithm, protocol, whether each element is combined in rank order, and whether in float32.
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


def all_reduce_way(
    algorithm: str,
    protocol: str,
    deterministic: str,
    accumulate: str,
    *,
    shards: int | None,
    ranks: int,
    tensor: torch.Tensor | None,
    op: Op,
) -> tuple[str, str, bool, bool, bool]:
    """Like :func:`way_asked` for a call with these ``shards``, op and tensor.

    Returns:
        The values of :func:`way_asked`, and whether floats are added by a tree over the ranks.
    """
    device = "cpu" if tensor is None else tensor.device.type
    if deterministic != "world_invariant":
        if shards is not None:
            raise ValueError("shards is for deterministic='world_invariant'; leave it out")
        return (*way_asked(algorithm, protocol, deterministic, accumulate, device), False)
    kept = "deterministic='world_invariant'"
    if shards is None:
        raise ValueError(f"{kept} needs shards: how many tensors are added, the same in every run")
    if shards != ranks:
        raise ValueError(
            f"{kept} with {shards} shards on {ranks} ranks: in this call each rank has one "
            f"shard, its tensor. Use {shards} ranks, or ringkern.ShardSum, which adds several "
            "shards a rank"
        )
    if op == dist.ReduceOp.PRODUCT and tensor is not None and tensor.is_floating_point():
        raise ValueError(f"{kept} has no PRODUCT of floats")
    # A result that was rounded on the way would depend on where it was.
    return (*way_asked(algorithm, protocol, "size_invariant", "float32", device), True)


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
