"""When the calls of the backend "ringkern" do what they do: after what the current stream had to do
before, before what it does after ``wait()``, in memory that nobody else has yet.

On CUDA a rank that is late keeps its stream busy before it calls, so that the others' calls are
still at work when the host is long past ``wait()``. On a CPU nobody is late.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.gpu import cases
from bench.gpu.backend_rank import LATE, Rank, every_way, reduced, wait_for
from bench.gpu.graph import Checked

COUNT = 30_720  # floats: a multiple of what the caching allocator hands out
REPLAYS = 20
STEPS = 3


def side_stream(at: Rank) -> Any:
    """A stream of the user's, which has seen what the current one was given so far."""
    if not at.on_cuda:
        return contextlib.nullcontext()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)


def waits(at: Rank) -> None:
    """``wait()`` holds back the stream that is current then, however late another rank is."""
    whole = reduced(at.of_all(COUNT), "SUM")
    at.asynchronous = True
    for late in range(at.size):
        tensors = [at.mine(COUNT) for _ in range(3)]
        at.delay(LATE if at.rank == late else 0)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i in (2, 0, 1):
            works[i].wait()
            at.expect(f"all_reduce {i} when rank {late} is late", tensors[i], whole)
        tensor = at.mine(COUNT)
        at.delay(LATE if at.rank == late else 0)
        work = dist.all_reduce(tensor, async_op=True)
        with side_stream(at):
            work.wait()
            at.expect(f"all_reduce on another stream when rank {late} is late", tensor, whole)
            at.settle_device()  # before the tensor goes back to the stream that it came from
        with side_stream(at):
            tensor = at.mine(COUNT)
            dist.all_reduce(tensor)
            at.expect("synchronous all_reduce on another stream", tensor, whole)
            at.settle_device()
        out = at.empty(COUNT)
        works = [dist.irecv(out, at.prev)]
        at.delay(LATE if at.rank == late else 0)
        works.append(dist.isend(at.mine(COUNT), at.next))
        wait_for(works)
        at.expect(f"irecv when rank {late} is late", out, at.of(at.prev, COUNT))


def is_completed(at: Rank) -> None:
    """Checks the state of a Work on any stream."""
    tensor = at.mine(COUNT)
    at.delay(LATE if at.rank == 0 else 0)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    with torch.cuda.stream(torch.cuda.Stream()) if at.on_cuda else contextlib.nullcontext():
        at.expect("a Work that says it has completed", tensor, reduced(at.of_all(COUNT), "SUM"))
        at.settle_device()
    at.expect_none("of a Work: not successful", torch.tensor(int(not work.is_success())))


def futures(at: Rank) -> None:
    at.asynchronous = True
    whole = reduced(at.of_all(COUNT), "SUM")
    for late in range(at.size):
        tensor = at.mine(COUNT)
        at.delay(LATE if at.rank == late else 0)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        twice = future.then(lambda done: done.value()[0] * 2)
        at.expect(f"then() when rank {late} is late", twice.wait(), whole * 2)
        at.expect(f"a future when rank {late} is late", future.wait()[0], whole)
        out = at.empty(COUNT * at.size)
        work = dist.all_gather_into_tensor(out, at.mine(COUNT), async_op=True)
        work.get_future().wait()
        at.expect(f"a future of all_gather, rank {late}", out, torch.cat(at.of_all(COUNT)))


# ---- memory: nothing that the caller drops is given to another tensor too early


def reused(at: Rank, sizes: list[int]) -> list[torch.Tensor]:
    """Tensors that are likely to lie where dropped ones lay; they are filled at once."""
    return [at.empty(size) for size in sizes for _ in range(4)]


def drop_all_reduce(at: Rank, columns: bool) -> list[torch.Tensor]:
    tensor = at.mine(COUNT)
    work = dist.all_reduce(tensor.view(60, -1).t() if columns else tensor, async_op=True)
    del tensor, work
    return reused(at, [COUNT])


def drop_reduce_scatter(at: Rank) -> list[torch.Tensor]:
    """The inputs are likely to lie one behind the other."""
    ins = [at.mine(COUNT) + to for to in range(at.size)]
    out = at.empty(COUNT)
    work = dist.reduce_scatter(out, ins, async_op=True)
    del ins
    taken = reused(at, [COUNT] * at.size)
    work.wait()
    at.expect("reduce_scatter of dropped inputs", out,
              reduced([at.of(r, COUNT) + at.rank for r in range(at.size)], "SUM"))  # fmt: skip
    return taken


def drop_all_gather(at: Rank) -> list[torch.Tensor]:
    outs = [at.empty(COUNT) for _ in range(at.size)]
    work = dist.all_gather(outs, at.mine(COUNT), async_op=True)
    del outs, work
    return reused(at, [COUNT] * at.size)


def drop_all_to_all(at: Rank) -> list[torch.Tensor]:
    outs = [at.empty(COUNT) for _ in range(at.size)]
    ins = [at.mine(COUNT) + to for to in range(at.size)]
    work = dist.all_to_all(outs, ins, async_op=True)
    del ins, outs, work
    return reused(at, [COUNT] * 2 * at.size)


def drop_isend(at: Rank) -> list[torch.Tensor]:
    dist.isend(at.mine(COUNT), at.next)
    taken = reused(at, [COUNT])
    out = at.empty(COUNT)
    wait_for([dist.irecv(out, at.prev)])
    at.expect("what was sent and dropped", out, at.of(at.prev, COUNT))
    return taken


DROPS: dict[str, Callable[[Rank], list[torch.Tensor]]] = {
    "all_reduce": lambda at: drop_all_reduce(at, columns=False),
    "all_reduce of columns": lambda at: drop_all_reduce(at, columns=True),
    "reduce_scatter": drop_reduce_scatter,
    "all_gather": drop_all_gather,
    "all_to_all": drop_all_to_all,
    "isend": drop_isend,
}


def memory(at: Rank) -> None:
    """Each rank is late in turn, and so is what the others have dropped still in use."""
    for what, drop in DROPS.items():
        for late in range(at.size):
            at.delay(LATE if at.rank == late else 0)
            taken = drop(at)
            close(at)
            for tensor in taken:
                poison = torch.empty_like(tensor)
                cases.poison(poison)
                at.expect(f"another tensor, after {what} was dropped", tensor, poison)
            whole = at.mine(COUNT)
            dist.all_reduce(whole)
            at.expect(f"all_reduce after {what} was dropped", whole,
                      reduced(at.of_all(COUNT), "SUM"))  # fmt: skip


def close(at: Rank) -> None:
    """Checks that earlier calls have ended on all ranks, on any stream."""
    dist.all_reduce(at.mine(1))
    dist.all_to_all_single(at.empty(at.size), at.mine(at.size))
    at.settle_device()
    dist.barrier()


# ---- a graph, and DDP


def captured(at: Rank) -> None:
    """A replay has other inputs each time, and counts what is wrong. A CPU makes plain calls."""

    def reduce(tensors: list[torch.Tensor]) -> None:
        at.call(dist.all_reduce, tensors[0])

    for count in (7, COUNT + 1):
        checked = Checked(at.here, range(at.rank, at.rank + 1), at.size, count)
        replay = checked.capture(reduce)
        for _ in range(REPLAYS):
            replay()
        at.expect_none(f"captured all_reduce[{count}]", checked.bad.clone())
        checked.once(reduce)
        at.expect_none(f"all_reduce[{count}] after the replays", checked.bad.clone())
        at.expect_none("steps of a graph", checked.step - (REPLAYS + 2))  # one before the capture
        at.settle_device()  # before the graph goes


def model_of(rank: int) -> nn.Sequential:
    """Integers, of a rank: DDP is to give all ranks those of rank 0."""
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            values = (torch.arange(parameter.numel()) * 5 + i + rank) % 3 - 1
            parameter.copy_(values.view(parameter.shape))
    return model


def batch_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (torch.arange(4 * 16) * 3 + rank + step).view(4, 16) % 3 - 1
    weights = (torch.arange(4 * 8) + rank + 2 * step).view(4, 8) % 3 - 1
    return rows.double(), weights.double()


def ddp(at: Rank) -> None:
    """A few steps with a batch a rank, against one process with all batches.

    The mean over 2 or 4 ranks and a rate of 1/16 keep all values multiples of a power of two that
    a float has room for: no order of additions rounds.
    """
    alone = model_of(0).double()
    model = nn.parallel.DistributedDataParallel(
        model_of(at.rank).to(at.here), bucket_cap_mb=0.001, gradient_as_bucket_view=True
    )
    optimizers = [torch.optim.SGD(each.parameters(), lr=1 / 16) for each in (model, alone)]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        rows, weights = (tensor.float().to(at.here) for tensor in batch_of(at.rank, step))
        (model(rows) * weights).sum().backward()
        for rank in range(at.size):
            rows, weights = batch_of(rank, step)
            ((alone(rows) * weights).sum() / at.size).backward()
        for ours, theirs in zip(model.parameters(), alone.parameters()):
            assert ours.grad is not None
            assert theirs.grad is not None
            expected = theirs.grad.float().to(at.here)
            # Plus zero, because -0.0 is as right: libraries of matrix products differ there.
            at.expect(f"DDP: a gradient of step {step}", ours.grad + 0.0, expected + 0.0)
        for optimizer in optimizers:
            optimizer.step()
        for ours, theirs in zip(model.parameters(), alone.parameters()):
            expected = theirs.detach().float().to(at.here)
            at.expect(f"DDP: parameters after step {step}", ours.detach() + 0.0, expected + 0.0)


CHECKS: dict[str, Callable[[Rank], None]] = {
    "waits": waits,
    "is_completed": is_completed,
    "futures": futures,
    "memory": memory,
    "captured": every_way(captured),
    "ddp": ddp,
}
