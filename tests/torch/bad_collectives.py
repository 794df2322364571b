"""Invalid calls over the ring, with their error texts: a part of test_backend_input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

Call = Callable[[int, int, dist.ProcessGroup], Any]
# name: (the call of one rank, of 2; the class; the text). Errors that torch itself finds before it
# calls the backend are left out, except on the paths around torch's checks.
Cases = dict[str, tuple[Call, type[Exception], str]]
OPS = dist.ReduceOp


def ones(n: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.ones(n, dtype=dtype, device=device)


def wide(n: int) -> torch.Tensor:
    """Returns a tensor whose elements are all one element."""
    return torch.ones(1).expand(n)


def sparse(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.eye(3).to(dtype).to_sparse()


def quantized(n: int) -> torch.Tensor:
    return torch._empty_affine_quantized([n], scale=1.0, zero_point=0, dtype=torch.qint8)


def raw(group: dist.ProcessGroup) -> Any:
    """Returns the backend, without the checks of torch's dispatcher."""
    return group._get_backend(torch.device("cpu"))


def reduce_op(op: Any) -> c10d.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def from_root(root: int, tensor: int = 0) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, tensor
    return options


def to_root(rank: int) -> c10d.GatherOptions:
    options = c10d.GatherOptions()
    options.rootRank = rank
    return options


def scattered_from(rank: int) -> c10d.ScatterOptions:
    options = c10d.ScatterOptions()
    options.rootRank = rank
    return options


def overlapping(n: int, m: int, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.ones(100)
    return memory[:n], memory[shift : shift + m]


REDUCTIONS: Cases = {
    "all_reduce of uint16": (
        lambda r, k, g: dist.all_reduce(ones(3, torch.uint16), group=g),
        TypeError,
        "tensor is of dtype torch.uint16, which ringkern does not reduce; it reduces float32, ",
    ),
    "maximum of complex numbers": (
        lambda r, k, g: g.allreduce([ones(3, torch.complex64)], reduce_op(OPS.MAX)),
        TypeError,
        "tensor is complex, and op max is not defined for complex numbers",
    ),
    "mean of integers": (
        lambda r, k, g: dist.all_reduce(ones(3, torch.int32), OPS.AVG, group=g),
        TypeError,
        "op avg is not defined for dtype int32",
    ),
    "mean of booleans": (
        lambda r, k, g: dist.all_reduce(ones(3, torch.bool), OPS.AVG, group=g),
        TypeError,
        "op avg is not defined for",
    ),
    "bitwise and of floats": (
        lambda r, k, g: dist.all_reduce(ones(3), OPS.BAND, group=g),
        TypeError,
        "op band is not defined for dtype float32",
    ),
    "premul_sum of integers": (
        lambda r, k, g: dist.all_reduce(
            ones(3, torch.int64), dist._make_nccl_premul_sum(2.0), group=g
        ),
        TypeError,
        "op premul_sum is not defined for dtype int64",
    ),
    "all_reduce on another device": (
        lambda r, k, g: raw(g).allreduce([ones(3, device="meta")]),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
    "all_reduce of a wide tensor": (
        lambda r, k, g: dist.all_reduce(wide(3), group=g),
        ValueError,
        "tensor has elements that share memory (an expanded tensor)",
    ),
    "all_reduce of a quantized tensor": (
        lambda r, k, g: raw(g).allreduce([quantized(3)]),
        ValueError,
        "tensor is not a dense tensor",
    ),
    "all_reduce of two tensors": (
        lambda r, k, g: g.allreduce([ones(3), ones(3)]),
        ValueError,
        "the list of tensor has 2 tensors and must have 1",
    ),
    "all_reduce of none": (
        lambda r, k, g: raw(g).allreduce([]),
        ValueError,
        "the list of tensor has 0 tensors and must have 1",
    ),
    "all_reduce_coalesced of none": (
        lambda r, k, g: raw(g).allreduce_coalesced([]),
        ValueError,
        "tensors is empty; give one tensor or more",
    ),
    "all_reduce_coalesced of one that is wrong": (
        lambda r, k, g: dist.all_reduce_coalesced([ones(3), wide(3)], group=g),
        ValueError,
        "tensors[1] has elements that share memory",
    ),
    "all_reduce_coalesced on two devices": (
        lambda r, k, g: raw(g).allreduce_coalesced([ones(3), ones(3, device="meta")]),
        ValueError,
        "tensors of one call are on cpu and on meta; they must be on the same device",
    ),
    "maximum of sparse tensors": (
        lambda r, k, g: dist.all_reduce(sparse(), OPS.MAX, group=g),
        ValueError,
        "tensor is sparse; sparse tensors are summed: give ReduceOp.SUM",
    ),
    "reduce of uint16": (
        lambda r, k, g: dist.reduce(ones(3, torch.uint16), r, group=g),
        TypeError,
        "tensor is of dtype torch.uint16, which ringkern does not reduce",
    ),
    "reduce of a wide tensor": (
        lambda r, k, g: dist.reduce(wide(3), 1 - r, group=g),
        ValueError,
        "tensor has elements that share memory",
    ),
    "reduce of a sparse tensor": (
        lambda r, k, g: raw(g).reduce([sparse()]),
        ValueError,
        "tensor is not a dense tensor",
    ),
    "reduce_scatter of too few": (
        lambda r, k, g: dist.reduce_scatter(ones(3), [ones(3)], group=g),
        ValueError,
        "input_list has 1 tensors and must have 2, one for each rank of the group",
    ),
    "reduce_scatter to another size": (
        lambda r, k, g: dist.reduce_scatter(ones(4), [ones(3)] * 2, group=g),
        ValueError,
        "output has 4 elements, shape [4], and must have 3, as input_list[",
    ),
    "reduce_scatter of uint16": (
        lambda r, k, g: dist.reduce_scatter(
            ones(3, torch.uint16), [ones(3, torch.uint16)] * 2, group=g
        ),
        TypeError,
        "input_list[0] is of dtype torch.uint16, which ringkern does not reduce",
    ),
    "reduce_scatter to a wide tensor": (
        lambda r, k, g: dist.reduce_scatter(wide(3), [ones(3)] * 2, group=g),
        ValueError,
        "output has elements that share memory",
    ),
    "reduce_scatter of two dtypes": (
        lambda r, k, g: raw(g).reduce_scatter([ones(3)], [[ones(3), ones(3).half()]]),
        ValueError,
        "output is torch.float32 and input_list[1] is torch.float16; they must have the same",
    ),
    "reduce_scatter of two devices": (
        lambda r, k, g: raw(g).reduce_scatter([ones(3)], [[ones(3, device="meta"), ones(3)]]),
        ValueError,
        "output is on cpu and input_list[0] on meta; they must be on the same device",
    ),
    "reduce_scatter_tensor to another size": (
        lambda r, k, g: dist.reduce_scatter_tensor(ones(3), ones(7), group=g),
        ValueError,
        "input has 7 elements, shape [7], and must have 6, those of output times the number of",
    ),
    "reduce_scatter_tensor to another dtype": (
        lambda r, k, g: raw(g)._reduce_scatter_base(ones(3), ones(6).double()),
        ValueError,
        "output is torch.float32 and input is torch.float64",
    ),
    "reduce_scatter_tensor of overlapping tensors": (
        lambda r, k, g: dist.reduce_scatter_tensor(*overlapping(10, 20, 5), group=g),
        ValueError,
        "output and input overlap",
    ),
}
MOVES: Cases = {
    "broadcast of a wide tensor": (
        lambda r, k, g: dist.broadcast(wide(3), r, group=g),
        ValueError,
        "tensor has elements that share memory",
    ),
    "broadcast of a sparse tensor": (
        lambda r, k, g: raw(g).broadcast([sparse()], from_root(0)),
        ValueError,
        "tensor is not a dense tensor",
    ),
    "broadcast on another device": (
        lambda r, k, g: raw(g).broadcast([ones(3, device="meta")], from_root(0)),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
    "broadcast from nobody": (
        lambda r, k, g: g.broadcast([ones(3)], from_root(2)),
        ValueError,
        "the root is rank 2, which is not among the 2 ranks of the group",
    ),
    "broadcast from a negative rank": (
        lambda r, k, g: g.broadcast([ones(3)], from_root(-1)),
        ValueError,
        "the root is rank -1",
    ),
    "broadcast of a second tensor": (
        lambda r, k, g: g.broadcast([ones(3)], from_root(0, 1)),
        ValueError,
        "the root tensor is number 1; each rank has one tensor, number 0",
    ),
    "all_gather to too few": (
        lambda r, k, g: dist.all_gather([ones(3)], ones(3), group=g),
        ValueError,
        "tensor_list has 1 tensors and must have 2, one for each rank of the group",
    ),
    "all_gather to too many": (
        lambda r, k, g: dist.all_gather([ones(3)] * 3, ones(3), group=g),
        ValueError,
        "tensor_list has 3 tensors and must have 2",
    ),
    "all_gather of another size": (
        lambda r, k, g: dist.all_gather([ones(3), ones(3)], ones(4), group=g),
        ValueError,
        "tensor has 4 elements, shape [4], and must have 3, as tensor_list[",
    ),
    "all_gather of another dtype": (
        lambda r, k, g: g.allgather([[ones(3), ones(3).half()]], [ones(3)]),
        ValueError,
        "tensor_list[1] is torch.float16 and tensor is torch.float32; they must have the same",
    ),
    "all_gather to a wide tensor": (
        lambda r, k, g: dist.all_gather([ones(3), wide(3)], ones(3), group=g),
        ValueError,
        "tensor_list[1] has elements that share memory",
    ),
    "all_gather to another device": (
        lambda r, k, g: raw(g).allgather([[ones(3), ones(3, device="meta")]], [ones(3)]),
        ValueError,
        "tensor_list[1] is on meta and tensor on cpu; they must be on the same device",
    ),
    "all_gather_into_tensor of another size": (
        lambda r, k, g: dist.all_gather_into_tensor(ones(7), ones(3), group=g),
        ValueError,
        "output_tensor has 7 elements, shape [7], and must have 6, those of input_tensor times",
    ),
    "all_gather_into_tensor of another dtype": (
        lambda r, k, g: raw(g)._allgather_base(ones(6).int(), ones(3)),
        ValueError,
        "output_tensor is torch.int32 and input_tensor is torch.float32",
    ),
    "all_gather_into_tensor of overlapping tensors": (
        lambda r, k, g: dist.all_gather_into_tensor(*overlapping(20, 10, 15), group=g),
        ValueError,
        "output and input overlap",
    ),
    "all_gather_coalesced of too few": (
        lambda r, k, g: dist.all_gather_coalesced([[ones(3)]], [ones(3)], group=g),
        ValueError,
        "output_tensor_lists has 1 tensors and must have 2",
    ),
    "all_gather_coalesced of lists that do not fit": (
        lambda r, k, g: g.allgather_coalesced([[ones(3)], [ones(3), ones(3)]], [ones(3)]),
        ValueError,
        "output_tensor_lists[1] has 2 tensors and must have 1, one for each of input_tensor_list",
    ),
}
