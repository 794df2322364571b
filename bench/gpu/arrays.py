"""Memory that torch's caching allocator does not hand out: CuPy's arrays, on CuPy's own stream, and
tensors in the private pool of a CUDA graph. On the CPU NumPy's arrays and plain tensors stand in.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from bench.gpu import cases

DTYPES = ("float32", "float16", "int64")  # that NumPy and CuPy have, too


def found(device: str) -> tuple[str, str]:
    """The library of arrays for a device and its version; ("", why there is none)."""
    name = "cupy" if device.startswith("cuda") else "numpy"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # CuPy's import fails in many ways
        return "", f"skipped: no {name} ({type(error).__name__}: {error})".splitlines()[0]
    return name, f"{name} {module.__version__}"


@contextlib.contextmanager
def own_stream(device: str, shared: bool) -> Iterator[None]:
    """Makes a stream of CuPy's its current one; torch's, too, if ``shared``."""
    if not device.startswith("cuda"):
        yield
        return
    import cupy  # type: ignore[import-not-found, unused-ignore]

    current = torch.cuda.current_stream()
    with cupy.cuda.Device(torch.device(device).index or 0):
        stream = cupy.cuda.Stream(non_blocking=True)
        seen = torch.cuda.ExternalStream(stream.ptr)
        seen.wait_stream(current)
        with stream, torch.cuda.stream(seen) if shared else contextlib.nullcontext():
            yield
        current.wait_stream(seen)
        stream.synchronize()  # it ends here, and its arrays with it


def of(rows: torch.Tensor) -> list[Any]:
    """A copy of each row, in memory of the library of arrays and on its current stream."""
    library = importlib.import_module("cupy" if rows.is_cuda else "numpy")
    return [library.from_dlpack(row).copy() for row in rows]


def in_graph_pool(rows: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
    """A copy of each row in the private pool of a CUDA graph, and the graph, which keeps it."""
    if not rows.is_cuda:
        return [row.clone() for row in rows], None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copies = [row.clone() for row in rows]
    graph.replay()
    return copies, graph


def check_ring(tally: cases.Tally, ring: Any, device: str, count: int = 5003) -> None:
    """A ring of this process over both kinds of memory."""
    name, _ = found(device)
    for dtype in DTYPES:
        given, expected = cases.all_reduce(device, "sum", dtype, ring.size, count)
        for shared in (True, False) if name else ():
            with own_stream(device, shared):
                arrays = of(given)
                ring.all_reduce(arrays)
                for rank, array in enumerate(arrays):
                    what = f"{name} on {'one stream' if shared else 'its own'} {dtype} rank {rank}"
                    tally.expect(torch.from_dlpack(array), expected, what)
                tally.settle()
        tensors, graph = in_graph_pool(given)
        ring.all_reduce(tensors)
        for rank, tensor in enumerate(tensors):
            tally.expect(tensor, expected, f"memory of a graph's pool, {dtype} rank {rank}")
        tally.settle()
        del tensors, graph
