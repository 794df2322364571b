"""Checks the results of the backend "ringkern": on each rank, against what it computes itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from bench.gpu.backend_rank import LATE, Rank, every_way, reduced, wait_for

COUNTS = (7, 5003)
LARGE = (2 << 20) + 1  # floats: several times what a link between two ranks holds
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
BIT_OPS = ("BAND", "BOR", "BXOR")


def all_reduce(at: Rank) -> None:
    kinds = [(op, torch.float32) for op in OPS] + [(op, torch.int64) for op in BIT_OPS]
    for op, dtype in [*kinds, ("SUM", torch.bfloat16), ("SUM", torch.int32)]:
        for count in COUNTS:
            tensor = at.mine(count, dtype)
            at.call(dist.all_reduce, tensor, getattr(dist.ReduceOp, op))
            whole = reduced(at.of_all(count, dtype), op)
            at.expect(f"all_reduce {op} {dtype}[{count}]", tensor, whole)
    tensor = at.mine(60)
    at.call(dist.all_reduce, tensor, dist._make_nccl_premul_sum(2.0))
    at.expect("all_reduce PREMUL_SUM", tensor, 2 * reduced(at.of_all(60), "SUM"))
    columns = at.mine(60).view(5, 12).t()
    at.call(dist.all_reduce, columns)
    at.expect("all_reduce of columns", columns, reduced(at.of_all(60), "SUM").view(5, 12).t())


def with_a_root(at: Rank) -> None:
    for root in range(at.size):
        for count in COUNTS:
            tensor = at.mine(count)
            at.call(dist.broadcast, tensor, root)
            at.expect(f"broadcast[{count}] of {root}", tensor, at.of(root, count))
            tensor = at.mine(count)
            at.call(dist.reduce, tensor, root)
            whole = reduced(at.of_all(count), "SUM") if at.rank == root else at.of(at.rank, count)
            at.expect(f"reduce[{count}] to {root}", tensor, whole)
            outs = [at.empty(count) for _ in range(at.size)] if at.rank == root else None
            at.call(dist.gather, at.mine(count), outs, dst=root)
            for rank, out in enumerate(outs or []):
                at.expect(f"gather[{count}] to {root}", out, at.of(rank, count))
            out, ins = at.empty(count), None
            if at.rank == root:
                ins = [at.mine(count) + rank for rank in range(at.size)]
            at.call(dist.scatter, out, ins, src=root)
            at.expect(f"scatter[{count}] of {root}", out, at.of(root, count) + at.rank)


def all_gather(at: Rank) -> None:
    for count in COUNTS:
        outs = [at.empty(count) for _ in range(at.size)]
        at.call(dist.all_gather, outs, at.mine(count))
        at.expect(f"all_gather[{count}]", torch.cat(outs), torch.cat(at.of_all(count)))
        whole = at.empty(count * at.size)
        at.call(dist.all_gather_into_tensor, whole, at.mine(count))
        at.expect(f"all_gather_into_tensor[{count}]", whole, torch.cat(at.of_all(count)))
        outs = [at.empty(count + rank) for rank in range(at.size)]
        at.call(dist.all_gather, outs, at.mine(count + at.rank))
        uneven = [at.of(rank, count + rank) for rank in range(at.size)]
        at.expect(f"all_gather of uneven tensors[{count}]", torch.cat(outs), torch.cat(uneven))


def reduce_scatter(at: Rank) -> None:
    for count in COUNTS:
        for form, uneven in (("tensor", 0), ("list", 0), ("uneven list", 1)):
            counts = [count + uneven * rank for rank in range(at.size)]
            whole = at.mine(sum(counts))
            parts = reduced(at.of_all(sum(counts)), "SUM").split(counts)
            out = at.empty(counts[at.rank])
            if form == "tensor":
                at.call(dist.reduce_scatter_tensor, out, whole)
            else:
                at.call(dist.reduce_scatter, out, [part.clone() for part in whole.split(counts)])
            at.expect(f"reduce_scatter of a {form}[{count}]", out, parts[at.rank])


def all_to_all(at: Rank) -> None:
    """Part s of rank r goes to s; where a part may be empty, (r + s) % 3 says how long it is."""
    for count in COUNTS:
        sent = [at.mine(count) + to for to in range(at.size)]
        outs = [at.empty(count) for _ in range(at.size)]
        at.call(dist.all_to_all, outs, sent)
        expected = torch.cat([at.of(r, count) + at.rank for r in range(at.size)])
        at.expect(f"all_to_all[{count}]", torch.cat(outs), expected)
        whole = at.empty(count * at.size)
        at.call(dist.all_to_all_single, whole, torch.cat(sent))
        at.expect(f"all_to_all_single[{count}]", whole, expected)
        splits = [[(r + s) % 3 * count for s in range(at.size)] for r in range(at.size)]
        uneven = [at.of(r, sum(splits[r])).split(splits[r])[at.rank] for r in range(at.size)]
        comes = [part.numel() for part in uneven]
        out = at.empty(sum(comes))
        at.call(dist.all_to_all_single, out, at.mine(sum(splits[at.rank])), comes, splits[at.rank])
        at.expect(f"all_to_all_single of uneven parts[{count}]", out, torch.cat(uneven))


def messages(at: Rank) -> None:
    """The first of its process: all links between pairs of ranks are still to be made."""
    for count in (*COUNTS, LARGE):
        # All send before anybody receives.
        out = at.empty(count)
        wait_for([dist.isend(at.mine(count), at.next), dist.irecv(out, at.prev)])
        at.expect(f"isend, irecv round the ring[{count}]", out, at.of(at.prev, count))
        out = at.empty(count)
        pair = [dist.P2POp(dist.isend, at.mine(count), at.next)]
        pair += [dist.P2POp(dist.irecv, out, at.prev)]
        wait_for(dist.batch_isend_irecv(pair))
        at.expect(f"batch_isend_irecv round the ring[{count}]", out, at.of(at.prev, count))
    for count in COUNTS:
        out = at.mine(count)
        if at.rank == 0:
            dist.send(out, at.next)
            dist.recv(out, at.prev)
        else:
            dist.recv(out, at.prev)
            dist.send(out, at.next)
        at.expect(f"send, recv[{count}]", out, at.of(0, count))
    columns = at.empty(60).view(5, 12).t()
    wait_for([dist.isend(at.mine(60).view(12, 5).t(), at.next), dist.irecv(columns, at.prev)])
    rows = at.of(at.prev, 60).view(12, 5).t().contiguous()
    at.expect("columns, sent and received", columns, rows.view(12, 5))
    several = [at.mine(count) + i for i, count in enumerate((3, 5003, 1, 700))]
    outs = [at.empty(tensor.numel()) for tensor in several]
    works = [dist.irecv(out, at.prev, tag=i) for i, out in enumerate(outs)]
    works += [dist.isend(tensor, at.next, tag=i) for i, tensor in enumerate(several)]
    wait_for(works)
    for i, out in enumerate(outs):
        at.expect(f"message {i} of several", out, at.of(at.prev, out.numel()) + i)


def barrier(at: Rank) -> None:
    """All have come, and what the current stream had to do before is done."""
    store = dist.distributed_c10d._get_default_store()
    for number in range(2):
        values, copy = at.of(at.rank, 5003), torch.zeros(5003, pin_memory=at.on_cuda)
        expected = values.cpu()
        at.delay(LATE)
        copy.copy_(values, non_blocking=True)
        store.add(f"came/{number}", 1)
        if number == 0:
            dist.barrier()
        else:
            dist.barrier(async_op=True).wait()
        at.expect("what comes before a barrier", copy, expected)
        missing = at.size - store.add(f"came/{number}", 0)
        at.expect_none("ranks that a barrier did not wait for", torch.tensor(missing))


def coalesced(at: Rank) -> None:
    """Several calls that are waited for as one, with and without a device named."""
    for device in (None, torch.device(at.here)):
        for kind in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
            # For each call: what it is given, the result first, and what that must be.
            calls: list[tuple[tuple[torch.Tensor, ...], torch.Tensor]] = []
            given: tuple[torch.Tensor, ...]
            for count in (3, 5003, 700):
                whole = reduced(at.of_all(count * at.size), "SUM")
                if kind == "all_reduce":
                    calls.append(((at.mine(count * at.size),), whole))
                elif kind == "all_gather_into_tensor":
                    given = (at.empty(count * at.size), at.mine(count))
                    calls.append((given, torch.cat(at.of_all(count))))
                else:
                    given = (at.empty(count), at.mine(count * at.size))
                    calls.append((given, whole.split(count)[at.rank]))
            with dist._coalescing_manager(device=device, async_ops=at.asynchronous) as manager:
                for given, _ in calls:
                    getattr(dist, kind)(*given)
            if at.asynchronous:
                manager.wait()
            for given, right in calls:
                where = "on a device" if device else "on no device"
                at.expect(f"{kind}[{right.numel()}] coalesced {where}", given[0], right)


def norm(at: Rank) -> None:
    """The sum over the ranks with a residual, to the bit; its norm beside torch's own."""
    from ringkern import functional  # which is built by now

    for rows in (1, 37):
        x, residual = (at.of(rank, rows * 512, torch.bfloat16) for rank in (at.rank, at.size))
        weight, shape = at.of(0, 512, torch.bfloat16), (rows, 512)
        out, total = functional.all_reduce_residual_rms_norm(
            x.view(shape), residual.view(shape), weight, 1e-6
        )
        whole = reduced(at.of_all(rows * 512, torch.bfloat16), "SUM") + residual
        at.expect(f"sum and residual of {rows} rows", total, whole.view(shape))
        right = torch.nn.functional.rms_norm(total, (512,), weight, 1e-6)
        far = (out - right).abs() > right.abs() / 64  # two last bits of a bfloat16
        at.expect_none(f"norm of {rows} rows", far.sum())


CHECKS: dict[str, Callable[[Rank], None]] = {
    "messages": messages,
    "all_reduce": every_way(all_reduce),
    "with a root": every_way(with_a_root),
    "all_gather": every_way(all_gather),
    "reduce_scatter": every_way(reduce_scatter),
    "all_to_all": every_way(all_to_all),
    "barrier": barrier,
    "coalesced": every_way(coalesced),
    "norm": norm,
}
