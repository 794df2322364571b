"""A rank a process: ringkern, next to torch's NCCL and torch's symmetric memory.

With several GPUs each rank has its own, and this is the comparison that counts. On one GPU the
processes take turns on it, a few milliseconds each: times then show that, and nothing of the ring.
torch's NCCL takes one rank a GPU; what symmetric memory says to a shared one is recorded.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
import torch.distributed as dist

from bench.gpu import device as devices
from bench.gpu import timing
from bench.gpu.cases import PROTOCOLS
from bench.gpu.contest import described
from bench.gpu.ipc import place
from bench.gpu.part import Context, Failed
from tests.ranks import Ranks, RankTimeout

SIZES = tuple(8 * 8**i for i in range(9))  # 8 B, ..., 128 MiB
SHARED_SIZES = (8, 32 << 10, 2 << 20)
SYMMETRIC = ("one_shot_all_reduce", "two_shot_all_reduce_", "multimem_all_reduce_")


def run(context: Context) -> None:
    context.use_ringkern()
    gpus = len(context.machine["gpus"])
    shared = gpus < 2 or context.rehearsal
    size = 2 if shared else min(gpus, 8)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    context.note(processes=size, share_a_gpu=shared, rows=rows, notes=notes)
    ranks = Ranks(size, timeout_s=60)
    try:
        for bytes_ in SHARED_SIZES if shared or context.quick else SIZES:
            if context.left(0.6) < 0:
                context.cut(f"{bytes_} bytes and more")
                break
            settings = (context.device, bytes_, shared, devices.l2_bytes(context.machine))
            found = ranks.run(contend, *settings)
            rows += [merged([of[i] for of in found], size) for i in range(len(found[0]))]
            context.note(rows=rows, notes=notes)
        ranks.run(finish)
        ranks.close()
    finally:
        ranks.kill()
    if shared and not context.rehearsal:
        # Last, and on its own: what is refused may leave its process unusable.
        notes.append(symmetric_on_one_gpu(min(30.0, max(5.0, context.left()))))
        notes.append("NCCL of torch: not tried, for it takes one rank a GPU and there is one GPU")
        context.note(notes=notes)
    wrong = [row for row in rows if row.get("wrong")]
    if wrong:
        raise Failed(f"{len(wrong)} results are wrong; first: {wrong[0]['contender']}")


def merged(lines: list[dict[str, Any]], ranks: int) -> dict[str, Any]:
    """One row of all ranks' lines: each repeat as on the rank that was slowest in it."""
    row = dict(lines[0])
    if "refused" in row:
        return row
    for kind in ("hot", "cold"):
        times = [max(repeat) for repeat in zip(*(line[f"{kind}_times_us"] for line in lines))]
        row[f"{kind}_times_us"] = times
        row[f"{kind}_us"] = statistics.median(times)
        busbw = row["size_bytes"] * 2 * (ranks - 1) / ranks / row[f"{kind}_us"] / 1e3
        row[f"{kind}_busbw_gb_s"] = round(busbw, 3)
    row["wrong"] = sum(line["wrong"] or 0 for line in lines)
    return {**row, "ranks": ranks}


_kept: dict[str, Any] = {}  # what a rank needs for all sizes


def contend(
    rank: int, size: int, device: str, bytes_: int, shared: bool, l2_bytes: int
) -> list[dict[str, Any]]:
    """One rank of a contest: all ranks time the same contenders in the same order."""
    import ringkern

    here = place(rank, device)
    if "flush" not in _kept:
        _kept["flush"] = timing.Flush(l2_bytes, here)
    buffers = timing.Buffers(1, max(1, bytes_ // 4), here)
    tensor = buffers.tensors[0]
    calls = 1 if shared else timing.calls_for(bytes_, size)

    def ringkern_call(protocol: str) -> Any:
        return lambda: ringkern.ring_all_reduce(tensor, protocol=protocol)

    made = [timing.Timed(f"ringkern/{p}", ringkern_call(p), calls) for p in PROTOCOLS]
    refused: list[dict[str, Any]] = []
    if not shared:
        if "nccl" not in _kept:
            _kept["nccl"] = dist.new_group(backend="nccl")
        call = lambda: dist.all_reduce(tensor, group=_kept["nccl"])  # noqa: E731
        made.append(timing.Timed("torch nccl", call, calls))
        for name in SYMMETRIC:
            call_or_reason = symmetric_call(name, tensor)
            if isinstance(call_or_reason, str):
                reason = {"contender": name, "size_bytes": bytes_, "refused": call_or_reason}
                refused.append(reason)
            else:
                made.append(timing.Timed(f"torch {name}", call_or_reason, calls))
    for contender in made:
        contender.wrong = buffers.wrong_after(contender.call, rank, size)
        contender.prepare(device)
    repeats = 3 if shared else timing.REPEATS
    timing.compete(made, buffers.refill, _kept["flush"], repeats, lambda: _start(device))
    return [{"size_bytes": bytes_, **described(contender)} for contender in made] + refused


def _start(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()  # of Gloo: on the host


def symmetric_call(name: str, tensor: torch.Tensor) -> Any:
    """A call of torch.ops.symm_mem on a tensor's numbers, or why there is none.

    It includes the copies into and out of symmetric memory, which a tensor of a user is not in.
    All ranks come to the same answer, or the next call of one of them would wait for ever.
    """
    call: Any = None
    reason = ""
    try:
        import torch.distributed._symmetric_memory as symmetric

        group = dist.group.WORLD
        assert group is not None
        operation = getattr(torch.ops.symm_mem, name)
        memory = symmetric.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        symmetric.rendezvous(memory, group.group_name)

        def call() -> None:
            memory.copy_(tensor)
            result = operation(memory, "sum", group.group_name)
            tensor.copy_(memory if name.endswith("_") else result)

        call()
        torch.cuda.synchronize()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    reasons: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), None) or call


def symmetric_on_one_gpu(seconds: float) -> str:
    """Asks symmetric memory about two processes that share a GPU."""
    ranks = Ranks(2, timeout_s=seconds)
    try:
        found = ranks.run(_try_symmetric)
    except (RankTimeout, EOFError, OSError) as error:
        return f"symmetric memory of torch, two processes on one GPU: no answer ({error})"
    except AssertionError as error:  # a RankError
        return f"symmetric memory of torch, two processes on one GPU: {error}"[:300]
    finally:
        ranks.kill()
    return f"symmetric memory of torch, two processes on one GPU: {found[0]}"


def _try_symmetric(rank: int, size: int) -> str:
    tensor = torch.full((1024,), float(rank + 1), device=place(rank, "cuda"))
    answers = []
    for name in SYMMETRIC[:2]:
        call = symmetric_call(name, tensor)
        answers.append(f"{name}: {call if isinstance(call, str) else 'works'}")
    return "; ".join(answers)


def finish(rank: int, size: int) -> None:
    """Frees what must not outlive the process group."""
    group = _kept.pop("nccl", None)
    _kept.clear()
    if group is not None:
        dist.destroy_process_group(group)
