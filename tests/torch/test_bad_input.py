"""Inputs that cannot be reduced: an error on the calling rank, and nothing sent to the others.

Each message says what was given, what is accepted and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool
from tests.torch.test_api import summed, values

pytestmark = pytest.mark.quick

Call = Callable[[int, int], Any]
DTYPES = f"ringkern takes {', '.join(ringkern.build_info()['dtypes'])}"
OPS = dist.ReduceOp
reduce, scatter, gather = (
    ringkern.ring_all_reduce,
    ringkern.ring_reduce_scatter,
    ringkern.ring_all_gather,
)


def shifted(collective: Callable[..., Any], first: int, second: int, n: int, m: int) -> Any:
    memory = torch.zeros(100)
    return collective(memory[first : first + n], memory[second : second + m])


def read_only() -> np.ndarray[Any, Any]:
    array = np.ones(5, dtype=np.float32)
    array.flags.writeable = False
    return array


# name: (the call of one rank, of 2; the class; the text)
CASES: dict[str, tuple[Call, type[Exception], str]] = {
    # dtypes
    "complex64": (
        lambda r, k: reduce(torch.ones(3, dtype=torch.complex64)),
        TypeError,
        f"tensor is of dtype torch.complex64; {DTYPES}: reduce torch.view_as_real(tensor)",
    ),
    "uint16": (
        lambda r, k: reduce(torch.ones(3, dtype=torch.uint16)),
        TypeError,
        f"tensor is of dtype torch.uint16; {DTYPES}: convert it first",
    ),
    "uint64 of reduce_scatter": (
        lambda r, k: scatter(*(torch.ones(n, dtype=torch.uint64) for n in (3, 6))),
        TypeError,
        f"output is of dtype torch.uint64; {DTYPES}: convert it first",
    ),
    "uint32 of all_gather": (
        lambda r, k: gather(*(torch.ones(n, dtype=torch.uint32) for n in (6, 3))),
        TypeError,
        f"output is of dtype torch.uint32; {DTYPES}",
    ),
    # devices and layouts
    "device meta": (
        lambda r, k: reduce(torch.ones(3, device="meta")),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'. It takes CPU tensors",
    ),
    "sparse": (
        lambda r, k: reduce(torch.ones(3).to_sparse()),
        TypeError,
        "tensor is a tensor of layout Sparse; ringkern takes dense tensors: call .to_dense() first",
    ),
    "nested": (
        lambda r, k: reduce(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        TypeError,
        "tensor is nested; reduce its parts, or .to_padded_tensor()",
    ),
    "quantized": (
        lambda r, k: reduce(torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)),
        TypeError,
        "tensor is quantized; reduce .int_repr() or .dequantize()",
    ),
    "expanded": (
        lambda r, k: reduce(torch.ones(1).expand(3)),
        ValueError,
        "tensor has elements that share memory (an expanded tensor); call .contiguous() or",
    ),
    "expanded output of reduce_scatter": (
        lambda r, k: scatter(torch.ones(1).expand(3), torch.ones(6)),
        ValueError,
        "output has elements that share memory",
    ),
    "expanded output of all_gather": (
        lambda r, k: gather(torch.ones(1).expand(6), torch.ones(3)),
        ValueError,
        "output has elements that share memory",
    ),
    # ops
    "avg of integers": (
        lambda r, k: reduce(torch.ones(3, dtype=torch.int32), OPS.AVG),
        TypeError,
        "op avg is not defined for dtype int32: sum and divide, or convert to a float first",
    ),
    "premul_sum of integers": (
        lambda r, k: reduce(torch.ones(3, dtype=torch.int64), dist._make_nccl_premul_sum(2.0)),
        TypeError,
        "op premul_sum is not defined for dtype int64",
    ),
    "premul_sum without a factor": (
        lambda r, k: reduce(torch.ones(3), OPS.PREMUL_SUM),
        ValueError,
        "ReduceOp.PREMUL_SUM needs a factor; make it with torch.distributed._make_nccl_premul_sum(",
    ),
    "bitwise and of floats": (
        lambda r, k: reduce(torch.ones(3), OPS.BAND),
        TypeError,
        "op band is not defined for dtype float32: bitwise ops take integer dtypes",
    ),
    "bitwise xor of reduce_scatter of floats": (
        lambda r, k: scatter(torch.ones(3).half(), torch.ones(6).half(), OPS.BXOR),
        TypeError,
        "op bxor is not defined for dtype float16",
    ),
    "op is a name": (
        lambda r, k: reduce(torch.ones(3), "sum"),
        TypeError,
        "op is 'sum'; give a torch.distributed.ReduceOp: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR",
    ),
    # protocols and groups
    "unknown protocol": (
        lambda r, k: reduce(torch.ones(3), protocol="tree"),
        ValueError,
        "unknown protocol 'tree'; choose one of auto, simple, ll, ll128",
    ),
    "unknown protocol of all_gather": (
        lambda r, k: gather(torch.ones(6), torch.ones(3), protocol="LL"),
        ValueError,
        "unknown protocol 'LL'; choose one of auto, simple, ll, ll128",
    ),
    "protocol None": (
        lambda r, k: reduce(torch.ones(3), protocol=None),  # type: ignore[arg-type]
        ValueError,
        "unknown protocol None",
    ),
    "group without this rank": (
        lambda r, k: reduce(torch.ones(3), group=dist.GroupMember.NON_GROUP_MEMBER),
        ValueError,
        "this rank is not a member of the group: only the ranks given to new_group may call",
    ),
    "group is a number": (
        lambda r, k: reduce(torch.ones(3), group=0),  # type: ignore[arg-type]
        TypeError,
        "group is int; give a ProcessGroup, or None for the default",
    ),
    # two tensors that do not match
    "sizes of reduce_scatter": (
        lambda r, k: scatter(torch.ones(3), torch.ones(7)),
        ValueError,
        "input has 7 elements and output has 3; with 2 ranks input must have 6",
    ),
    "sizes of all_gather": (
        lambda r, k: gather(torch.ones(3), torch.ones(3)),
        ValueError,
        "output has 3 elements and input has 3; with 2 ranks output must have 6",
    ),
    "dtypes of reduce_scatter": (
        lambda r, k: scatter(torch.ones(3), torch.ones(6).double()),
        TypeError,
        "output is torch.float32 and input is torch.float64; they must have the same dtype",
    ),
    "dtypes of all_gather": (
        lambda r, k: gather(torch.ones(6).int(), torch.ones(3)),
        TypeError,
        "output is torch.int32 and input is torch.float32; they must have the same dtype",
    ),
    "devices of reduce_scatter": (
        lambda r, k: scatter(torch.ones(3), torch.ones(6, device="meta")),
        ValueError,
        "output is on cpu and input on meta; they must be on the same device",
    ),
    "devices of all_gather": (
        lambda r, k: gather(torch.ones(6, device="meta"), torch.ones(3)),
        ValueError,
        "output is on meta and input on cpu; they must be on the same device",
    ),
    "another rank's part of reduce_scatter": (
        lambda r, k: shifted(scatter, 10 * (1 - r), 0, 10, 20),
        ValueError,
        "output and input overlap; in place, output must be exactly this rank's part of input",
    ),
    "partial overlap of reduce_scatter": (
        lambda r, k: shifted(scatter, 5, 0, 10, 20),
        ValueError,
        "output and input overlap",
    ),
    "partial overlap of all_gather": (
        lambda r, k: shifted(gather, 0, 15, 20, 10),
        ValueError,
        "output and input overlap; in place, input must be exactly this rank's part of output",
    ),
    # objects that are not tensors
    "list": (
        lambda r, k: reduce([1.0, 2.0]),
        TypeError,
        "tensor is list; give a torch.Tensor, or an array with __dlpack__ (NumPy, CuPy)",
    ),
    "None": (
        lambda r, k: gather(torch.ones(6), None),
        TypeError,
        "input is NoneType; give a torch.Tensor",
    ),
    "read-only array": (
        lambda r, k: reduce(read_only()),
        ValueError,
        "tensor is a read-only ndarray, and the result is written to it; give a copy",
    ),
    "read-only output": (
        lambda r, k: scatter(read_only(), torch.ones(10)),
        ValueError,
        "output is a read-only ndarray",
    ),
    "reversed array": (
        lambda r, k: reduce(np.arange(5.0)[::-1]),
        ValueError,
        "tensor is a reversed ndarray (a stride is negative); give a copy",
    ),
    "array in another byte order": (
        lambda r, k: reduce(np.arange(5).astype(">f4")),
        ValueError,
        "the memory of tensor, a ndarray, cannot be shared",
    ),
    "array of texts": (
        lambda r, k: reduce(np.array(["a"])),
        ValueError,
        "of a dtype that torch has",
    ),
    "array of uint16": (
        lambda r, k: reduce(np.ones(3, dtype=np.uint16)),
        TypeError,
        f"tensor is of dtype torch.uint16; {DTYPES}",
    ),
}


def _one_rank_errs(rank: int, size: int, name: str, who: int) -> tuple[str, str] | None:
    call, error, _ = CASES[name]
    said = None
    if rank == who:
        with pytest.raises(error) as caught:
            call(rank, size)
        assert type(caught.value) is error
        said = type(caught.value).__name__, str(caught.value)
    # None of these calls has reached the ring: the next call of all ranks matches.
    x = values(rank)
    reduce(x)
    assert torch.equal(x, summed(size))
    return said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_raised_where_it_was_made(ranks: Pool, name: str) -> None:
    _, error, text = CASES[name]
    for who in range(2):
        outcome = ranks(2).run(_one_rank_errs, name, who)
        assert outcome[1 - who] is None
        assert outcome[who][0] == error.__name__
        assert text in outcome[who][1]


def _nothing_changed(rank: int, size: int) -> None:
    x = values(rank, dtype=torch.int32)
    before, version = x.clone(), x._version
    for bad in (
        lambda: reduce(x, OPS.AVG),
        lambda: reduce(x, protocol="tree"),
        lambda: reduce(x, OPS.AVG, async_op=True),  # raises at once, not in wait()
    ):
        with pytest.raises((TypeError, ValueError)):
            bad()
    assert torch.equal(x, before)
    assert x._version == version


def test_a_refused_tensor_is_untouched(ranks: Pool) -> None:
    ranks(2).run(_nothing_changed)


def test_cuda_tensor_without_cuda_kernels() -> None:
    info = ringkern.build_info()
    if info["cuda"]:
        pytest.skip("CUDA kernels are compiled in: a CUDA tensor is no bad input")
    with (
        ringkern.Communicator.from_store(dist.HashStore(), 0, 1) as communicator,
        pytest.raises(ValueError, match="build it where nvcc is on the PATH"),
    ):
        communicator.all_reduce(torch.ones(3, device="meta"))
