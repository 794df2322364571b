"""Recording on GPUs: the kernels with a clock, on real ones."""

from __future__ import annotations

import pytest
import torch

import ringkern
from ringkern import _C
from ringkern.comm import communicator_for
from ringkern.tools import exact
from ringkern.tools.trace.events import Trace
from ringkern.tools.trace.record import record
from tests.trace.test_record import Pool

if not ringkern.build_info()["cuda"]:
    pytest.skip("built without CUDA kernels", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

PROTOCOLS = _C.protocols


def _record(rank: int, size: int, size_bytes: int, protocol: str) -> str:
    torch.cuda.set_device(rank % torch.cuda.device_count())
    trace = record(size_bytes, protocol=protocol, device="cuda")
    return trace.to_json() if trace else ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_verb_of_every_rank(ranks: Pool, protocol: str) -> None:
    """More ranks than GPUs share them."""
    for size_bytes in (4, 100_000, 1 << 20):
        trace = Trace.from_json(ranks(2).run(_record, size_bytes, protocol)[0])
        trace.check()
        assert (trace.device, trace.count) == ("cuda", size_bytes // 4)
        assert trace.channels >= 1
        assert len(trace.events) == 2 * 3 * trace.channels * trace.loops
        assert trace.duration_ns > 0


def _results(rank: int, size: int, protocol: str) -> None:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    c = communicator_for(None)._c
    for count in (0, 1, 1000, 70_001):
        given, expected = exact.all_reduce("sum", torch.float32, rank, size, count)
        before, x, after = (given.to(device) for _ in range(3))
        ringkern.ring_all_reduce(before, protocol=protocol)
        c.record_all_reduce(x, protocol)
        ringkern.ring_all_reduce(after, protocol=protocol)
        for result in (before, x, after):
            assert exact.differences(result.cpu(), expected) == 0
    with pytest.raises(TypeError, match="only kernels of float32 are there with a clock"):
        c.record_all_reduce(torch.ones(3, dtype=torch.bfloat16, device=device), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_results_of_traced_calls_and_their_neighbours(ranks: Pool, protocol: str) -> None:
    ranks(2).run(_results, protocol)
