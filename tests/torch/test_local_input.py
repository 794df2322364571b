"""Invalid arguments for a ring of ranks in this process: refused before any tensor has changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringkern
from ringkern import local
from tests.torch.test_bad_input import DTYPES, read_only

OPS = dist.ReduceOp
reduce = local.ring_all_reduce


def scatter(outputs: list[torch.Tensor], inputs: list[torch.Tensor], *args: Any) -> None:
    with local.Ring(["cpu"] * 2) as ring:
        ring.reduce_scatter(outputs, inputs, *args)


def gather(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    with local.Ring(["cpu"] * 2) as ring:
        ring.all_gather(outputs, inputs)


def ones(*sizes: int, **kwargs: Any) -> list[torch.Tensor]:
    return [torch.ones(n, **kwargs) for n in sizes]


def parts(*ranges: tuple[int, int]) -> list[torch.Tensor]:
    memory = torch.zeros(100)
    return [memory[first:last] for first, last in ranges]


def overlapping_pair() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns tensors where rank 1's output is a part of rank 0's input."""
    x = torch.zeros(6)
    return [torch.zeros(3), x[:3]], [x, torch.zeros(6)]


ANOTHER_PART = parts((3, 6), (13, 16), (0, 6), (10, 16))

# name: (call, class, text)
CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # lists
    "empty": (lambda: reduce([]), ValueError, "tensors is empty; give one tensor for each rank"),
    "one tensor": (
        lambda: reduce(torch.ones(3)),
        TypeError,
        "tensors is Tensor; give a list of tensors, one for each rank",
    ),
    "a number": (lambda: reduce(3), TypeError, "tensors is int; give a list of tensors"),
    "None in the list": (
        lambda: reduce([torch.ones(3), None]),
        TypeError,
        "tensors[1] is NoneType; give a torch.Tensor",
    ),
    "read-only array": (
        lambda: reduce([torch.ones(5), read_only()]),
        ValueError,
        "tensors[1] is a read-only ndarray",
    ),
    "too many": (
        lambda: gather(ones(6, 6, 6), ones(3, 3, 3)),
        ValueError,
        "a ring of 2 ranks takes as many outputs, one for each rank, not 3",
    ),
    "too few inputs": (
        lambda: scatter(ones(3, 3), ones(6)),
        ValueError,
        "a ring of 2 ranks takes as many inputs, one for each rank, not 1",
    ),
    # tensors that do not match
    "sizes": (
        lambda: reduce(ones(3, 3, 4)),
        ValueError,
        "rank 2 and rank 0 have tensors of 4 and 3 elements; all ranks must have the same number",
    ),
    "sizes of reduce_scatter": (
        lambda: scatter(ones(3, 4), ones(6, 8)),
        ValueError,
        "rank 1 and rank 0 have tensors of 8 and 6 elements",
    ),
    "sizes of a rank's own": (
        lambda: gather(ones(6, 6), ones(3, 4)),
        ValueError,
        "rank 1: output has 6 elements and input has 4; with 2 ranks output must have 8",
    ),
    "dtypes": (
        lambda: reduce([torch.ones(3), torch.ones(3).double()]),
        TypeError,
        "rank 1 and rank 0 have tensors of float64 and float32; all ranks must have one dtype",
    ),
    "the same tensor twice": (
        lambda: reduce(ones(3) * 2),
        ValueError,
        "tensors of rank 0 and rank 1 share memory; give each rank its own",
    ),
    "overlap": (
        lambda: reduce(parts((0, 10), (20, 30), (29, 39))),
        ValueError,
        "tensors of rank 1 and rank 2 share memory",
    ),
    "the same column twice": (
        lambda: reduce([x[:, 1] for x in [torch.ones(3, 3)] * 2]),
        ValueError,
        "tensors of rank 0 and rank 1 share memory",
    ),
    "output in another rank's input": (
        lambda: scatter(*overlapping_pair()),
        ValueError,
        "tensors of rank 1 and rank 0 share memory",
    ),
    "another rank's part": (
        lambda: scatter(ANOTHER_PART[:2], ANOTHER_PART[2:]),
        ValueError,
        "rank 0: output and input overlap; in place, output must be exactly this rank's part",
    ),
    # devices
    "device meta": (
        lambda: reduce(ones(3, 3, device="meta")),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'. It takes CPU tensors",
    ),
    "two kinds of device": (
        lambda: reduce([torch.ones(3), torch.ones(3, device="meta")]),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
    "not the ring's device": (
        lambda: gather(ones(6, 6), [torch.ones(3), torch.ones(3, device="meta")]),
        ValueError,
        "inputs[1] is on meta, and rank 1 of this ring on cpu",
    ),
    "ring of nothing": (
        lambda: local.Ring([]),
        ValueError,
        "a ring has one rank or more; give a device for each",
    ),
    "ring of a name": (
        lambda: local.Ring("cpu"),
        TypeError,
        "devices is 'cpu'; give a list with a device for each rank",
    ),
    "no timeout": (
        lambda: local.Ring(["cpu"], timedelta(0)),
        ValueError,
        "give a millisecond or more",
    ),
    "too many ranks": (
        lambda: local.Ring(["cpu"] * 1025),
        ringkern.errors.CommUsageError,
        "a local ring has 1 to 1024 ranks, not 1025",
    ),
    # properties that no tensor may have, like for ranks in processes
    "uint16": (
        lambda: reduce([torch.ones(3), torch.ones(3, dtype=torch.uint16)]),
        TypeError,
        f"rank 1: tensor is of dtype torch.uint16; {DTYPES}",
    ),
    "sparse": (
        lambda: reduce([torch.ones(3).to_sparse(), torch.ones(3)]),
        TypeError,
        "rank 0: tensor is a tensor of layout Sparse",
    ),
    "expanded": (
        lambda: reduce([torch.ones(3), torch.ones(1).expand(3)]),
        ValueError,
        "rank 1: tensor has elements that share memory (an expanded tensor)",
    ),
    "expanded output": (
        lambda: gather([torch.ones(6), torch.ones(1).expand(6)], ones(3, 3)),
        ValueError,
        "rank 1: output has elements that share memory",
    ),
    # ops and protocols
    "avg of integers": (
        lambda: reduce(ones(3, 3, dtype=torch.int32), OPS.AVG),
        TypeError,
        "op avg is not defined for dtype int32",
    ),
    "op is a name": (lambda: reduce(ones(3, 3), "sum"), TypeError, "op is 'sum'; give a"),
    "premul_sum without a factor": (
        lambda: reduce(ones(3, 3), OPS.PREMUL_SUM),
        ValueError,
        "ReduceOp.PREMUL_SUM needs a factor",
    ),
    "unknown protocol": (
        lambda: reduce(ones(3, 3), protocol="tree"),
        ValueError,
        "unknown protocol 'tree'; choose one of auto, simple, ll, ll128",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    call, error, text = CASES[name]
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert text in str(caught.value)


def test_a_refused_tensor_is_untouched() -> None:
    good = torch.ones(3, 3).t()
    version = good._version
    for bad in (torch.ones(9).to(torch.uint16), torch.ones(8), torch.ones(9).double(), good):
        with pytest.raises((TypeError, ValueError)):
            reduce([good, bad])
    assert torch.equal(good, torch.ones(3, 3))
    assert good._version == version


def test_tensors_that_lie_between_each_other() -> None:
    matrix = torch.arange(12.0).view(3, 4)
    total = matrix.sum(1)
    reduce(matrix.unbind(1))
    assert torch.equal(matrix, total[:, None].expand(3, 4))


def test_in_place_and_shared_inputs() -> None:
    wholes = [torch.arange(6.0), torch.arange(6.0)]
    scatter([wholes[0][:3], wholes[1][3:]], wholes)
    assert wholes[0].tolist() == [0, 2, 4, 3, 4, 5]
    assert wholes[1].tolist() == [0, 1, 2, 6, 8, 10]
    x = torch.zeros(9)
    reduce([x[3:3], x[:0], torch.ones(0)])  # empty tensors share nothing
    x, outputs = torch.arange(3.0), ones(6, 6)
    gather(outputs, [x, x])  # only read
    assert all(y.tolist() == [0, 1, 2, 0, 1, 2] for y in outputs)


def test_devices_may_be_given_in_any_way() -> None:
    with local.Ring([torch.device("cpu"), "cpu", "cpu:0"]) as ring:
        assert ring.devices == (torch.device("cpu"),) * 3
        assert repr(ring) == "<ringkern.local.Ring on cpu, cpu, cpu>"
        tensors = ones(5, 5, 5)
        ring.all_reduce(iter(tensors))
        assert all((x == 3).all() for x in tensors)


def test_cuda_tensors_without_cuda_kernels() -> None:
    if ringkern.build_info()["cuda"]:
        pytest.skip("CUDA kernels are compiled in: a CUDA tensor is no bad input")
    with pytest.raises(ValueError, match="build it where nvcc is on the PATH"):
        local.Ring(["cuda:0", "cuda:0"])


def test_cuda_without_a_gpu() -> None:
    if not ringkern.build_info()["cuda"]:
        pytest.skip("built without CUDA kernels")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ringkern.errors.TransportError, match="No GPU can be used"):
        local.Ring(["cuda", 0])
    with pytest.raises(ValueError, match="all on the CPU, or all on CUDA devices"):
        local.Ring(["cpu", "cuda:0"])
