"""The calls of the backend "ringkern" on memory that is not of torch's caching allocator."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.gpu import arrays
from bench.gpu.backend_rank import Rank, every_way, reduced

COUNT = 5003


def foreign(at: Rank) -> None:
    """Arrays of CuPy; of NumPy on a CPU."""
    for dtype in (torch.float32, torch.int64):
        for shared in (True, False):
            with arrays.own_stream(at.here, shared):
                mine, out = (
                    torch.from_dlpack(array)
                    for array in arrays.of(torch.stack([at.mine(COUNT, dtype)] * 2))
                )
                at.call(dist.all_reduce, mine)
                whole = reduced(at.of_all(COUNT, dtype), "SUM")
                at.expect(f"all_reduce of an array, shared stream {shared}", mine, whole)
                at.call(dist.broadcast, out, 0)
                at.expect(f"broadcast of an array, shared stream {shared}", out,
                          at.of(0, COUNT, dtype))  # fmt: skip
                at.settle_device()


def graph_pool(at: Rank) -> None:
    """Tensors in the private pool of a CUDA graph; plain ones on a CPU."""
    (mine, part), graph = arrays.in_graph_pool(torch.stack([at.mine(COUNT)] * 2))
    at.call(dist.all_reduce, mine)
    at.expect("all_reduce in a graph's pool", mine, reduced(at.of_all(COUNT), "SUM"))
    out = at.empty(COUNT * at.size)
    at.call(dist.all_gather_into_tensor, out, part)
    at.expect("all_gather out of a graph's pool", out, torch.cat(at.of_all(COUNT)))
    at.settle_device()  # before the graph and its memory go
    del graph


CHECKS: dict[str, Callable[[Rank], None]] = {
    "arrays": every_way(foreign),
    "graph pool": every_way(graph_pool),
}
