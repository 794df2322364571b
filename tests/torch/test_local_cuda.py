"""Rings of CUDA devices in this process. tests/cuda compares the kernels' bits with the model of
the ring's order; these tests check the arguments from Python, and the order of the calls.
"""

from __future__ import annotations

import pytest
import torch

import ringkern
from ringkern import local
from ringkern.errors import CommAbortedError, CommUsageError
from tests.torch.sequences import OPS
from tests.torch.test_api import summed, values

if not ringkern.build_info()["cuda"]:
    pytest.skip("built without CUDA kernels", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

DEVICES = torch.cuda.device_count()
PROTOCOLS = ("auto", "simple", "ll", "ll128")


def places(size: int) -> list[list[str]]:
    """Returns one device for all ranks; with several devices, also the ranks spread over them in
    turn.
    """
    one = ["cuda:0"] * size
    in_turn = [f"cuda:{rank % DEVICES}" for rank in range(size)]
    return [one] if one == in_turn else [one, in_turn]


def on(devices: list[str], n: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [values(rank, n, dtype).to(device) for rank, device in enumerate(devices)]


def check(tensors: list[torch.Tensor], n: int) -> None:
    for x in tensors:
        assert torch.equal(x.cpu(), summed(len(tensors), n).to(x.dtype).view(x.shape))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_all_reduce(size: int, protocol: str) -> None:
    for devices in places(size):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.int32, torch.uint8):
            for n in (0, 1, 17, 1000, 100_003):
                tensors = on(devices, n, dtype)
                assert local.ring_all_reduce(tensors, protocol=protocol) is None
                check(tensors, n)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_op_of_integers(protocol: str) -> None:
    """Integer results do not depend on the order, so the CPU's result is exact."""
    for devices in places(3):
        for name in ("sum", "prod", "min", "max", "band", "bor", "bxor"):
            theirs = on(devices, 5003, torch.int64)
            ours = [x.cpu() for x in theirs]
            local.ring_all_reduce(theirs, OPS[name], protocol)
            local.ring_all_reduce(ours, OPS[name], protocol)
            assert all(torch.equal(x.cpu(), y) for x, y in zip(theirs, ours))


@pytest.mark.parametrize("size", [2, 3])
def test_reduce_scatter_and_all_gather(size: int) -> None:
    n = 1009
    for devices in places(size):
        with local.Ring(devices) as ring:
            wholes = on(devices, n * size)
            parts = [torch.empty(n, device=device) for device in devices]
            ring.reduce_scatter(parts, wholes)
            for rank, part in enumerate(parts):
                assert torch.equal(part.cpu(), summed(size, n * size)[rank * n : (rank + 1) * n])
            ring.all_gather(wholes, parts)
            check(wholes, n * size)


def test_views() -> None:
    for devices in places(2):
        rows = [torch.zeros(100, 11, device=device) for device in devices]
        views = [x[:, 1:] for x in rows]  # neither aligned nor contiguous
        for view, x in zip(views, on(devices, 1000)):
            view.copy_(x.view(100, 10))
        local.ring_all_reduce(views)
        check(views, 1000)
        assert all((x[:, 0] == 0).all() for x in rows)


def test_on_the_current_streams() -> None:
    for devices in places(2):
        streams = {device: torch.cuda.Stream(device) for device in devices}
        for stream in streams.values():
            torch.cuda.set_stream(stream)
        try:
            tensors = [torch.zeros(1 << 20, device=device) for device in devices]
            for x in tensors:
                with torch.cuda.device(x.device):
                    torch.cuda._sleep(20_000_000)  # earlier work must have ended first
                x += 1
            local.ring_all_reduce(tensors)
            for x in tensors:
                x += 1
            assert all((x == 3).all() for x in tensors)
        finally:
            for device in streams:
                torch.cuda.set_stream(torch.cuda.default_stream(device))


def test_several_rings_and_streams() -> None:
    with local.Ring(["cuda:0"] * 2) as first, local.Ring(["cuda:0"] * 3) as second:
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        kept = []
        for i in range(40):
            ring = (first, second)[i % 2]
            with torch.cuda.stream(streams[i // 2 % 2]):
                tensors = on(["cuda:0"] * ring.size, 3000)
                ring.all_reduce(tensors)
                kept.append(tensors)
        torch.cuda.synchronize()
        for tensors in kept:
            check(tensors, 3000)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_in_a_graph(protocol: str) -> None:
    devices = ["cuda:0"] * 4
    sources = on(devices, 3000)
    tensors = [torch.empty_like(x) for x in sources]
    with local.Ring(devices) as ring:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for x, source in zip(tensors, sources):
                x.copy_(source)
            ring.all_reduce(tensors, protocol=protocol)
            ring.all_reduce(tensors, protocol=protocol)
        for replay in range(100):
            graph.replay()
            expected = 4 * (summed(4, 3000) + 4 * replay)
            assert all(torch.equal(x.cpu(), expected) for x in tensors)
            if replay % 10 == 0:  # beside the graph
                beside = on(devices, 3000)
                ring.all_reduce(beside, protocol=protocol)
                check(beside, 3000)
            for source in sources:
                source += 1


@pytest.mark.skipif(DEVICES < 2, reason="needs two GPUs")
def test_in_a_graph_over_two_devices() -> None:
    devices = ["cuda:0", "cuda:1"]
    tensors = [torch.ones(3000, device=device) for device in devices]
    with local.Ring(devices) as ring:
        ring.all_reduce(tensors)
        graph = torch.cuda.CUDAGraph()
        other = torch.cuda.Stream("cuda:1")
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream("cuda:0")
            other.wait_stream(stream)
            with torch.cuda.device("cuda:1"):
                torch.cuda.set_stream(other)
            ring.all_reduce(tensors)
            stream.wait_stream(other)
        torch.cuda.set_stream(torch.cuda.default_stream("cuda:1"))
        torch.cuda.set_device(0)
        for replay in range(1, 11):
            graph.replay()
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            assert all((x == 2 ** (replay + 1)).all() for x in tensors)


def test_no_ring_is_made_in_a_graph() -> None:
    x = torch.ones(3, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        with pytest.raises(CommUsageError, match=r"make a ringkern\.local\.Ring before"):
            local.Ring(["cuda:0"] * 2)


def test_more_ranks_than_fit() -> None:
    with pytest.raises(CommUsageError, match="1 to 32 ranks on a device, not 33"):
        local.Ring(["cuda:0"] * 33)


def test_cpu_and_cuda_together() -> None:
    with pytest.raises(ValueError, match="all on the CPU, or all on CUDA devices"):
        local.ring_all_reduce([torch.ones(3), torch.ones(3, device="cuda:0")])


def test_abort_and_close() -> None:
    with local.Ring(["cuda"] * 2) as ring:
        assert ring.devices[0].index == torch.cuda.current_device()
        tensors = on([str(device) for device in ring.devices], 1000)
        ring.all_reduce(tensors)
        torch.cuda.synchronize()
        ring.abort("out of patience")
        with pytest.raises(CommAbortedError, match="out of patience"):
            ring.all_reduce(tensors)
    with pytest.raises(CommUsageError, match="is closed"):
        ring.all_reduce(tensors)
    check(tensors, 1000)
