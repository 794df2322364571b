"""Tensors that are not contiguous, are conjugate or negative views, or own no memory: every
collective of the backend changes only the bytes of the result.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid
from tests.torch.layouts import LAYOUTS, Memory
from tests.torch.rings import normal, ring

N = 180  # elements of each tensor; every layout cuts it in another way


class Case:
    """Input and output memories of one rank. Layouts differ from rank to rank."""

    def __init__(self, rank: int, layout: str) -> None:
        first = LAYOUTS.index(layout)
        self._next, self._seed = first + rank, 100 * first + rank
        self.ins: list[Memory] = []
        self.outs: list[Memory] = []

    def _memory(self, values: torch.Tensor) -> Memory:
        self._next, self._seed = self._next + 1, self._seed + 1
        return Memory.of(values, LAYOUTS[self._next % len(LAYOUTS)], self._seed)

    def given(self, values: torch.Tensor) -> torch.Tensor:
        self.ins.append(self._memory(values))
        return self.ins[-1].tensor

    def result(self, values: torch.Tensor) -> torch.Tensor:
        self.outs.append(self._memory(values))
        return self.outs[-1].tensor

    def check(self, wanted: list[torch.Tensor]) -> None:
        assert len(wanted) == len(self.outs)
        for out, want in zip(self.outs, wanted):
            assert torch.equal(out.tensor.reshape(-1), want)
            assert out.changed_outside(written=True) == 0, "bytes outside the output changed"
        for given in self.ins:
            assert given.changed_outside(written=False) == 0, "the input changed"


def _values(rank: int, part: int = 0, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return normal(dtype, (N,), rank, part)


def _zeros() -> torch.Tensor:
    return torch.zeros(N, dtype=torch.int32)


def _layouts(rank: int, size: int, layout: str) -> None:
    group, everyone = ring(), range(size)
    total = torch.stack([_values(r) for r in everyone]).sum(0, dtype=torch.int32)
    parts = [[_values(a, b) for b in everyone] for a in everyone]  # from rank a, for rank b
    mine = torch.stack([parts[a][rank] for a in everyone]).sum(0, dtype=torch.int32)
    gathered = [_values(r) for r in everyone]

    case = Case(rank, layout)
    dist.all_reduce(case.result(_values(rank)), group=group)
    case.check([total])

    for root in everyone:
        case = Case(rank, layout)
        # The root's input is unchanged and equals every output.
        dist.broadcast(case.result(_values(rank)), root, group=group)
        case.check([_values(root)])
        case = Case(rank, layout)
        x = (case.result if rank == root else case.given)(_values(rank))
        dist.reduce(x, root, group=group)
        case.check([total] if rank == root else [])
        case = Case(rank, layout)
        outs = [case.result(_zeros()) for _ in everyone] if rank == root else None
        dist.gather(case.given(_values(rank)), outs, root, group=group)
        case.check(gathered if rank == root else [])
        case = Case(rank, layout)
        ins = [case.given(x) for x in parts[root]] if rank == root else None
        dist.scatter(case.result(_zeros()), ins, root, group=group)
        case.check([parts[root][rank]])

    case = Case(rank, layout)
    dist.all_gather([case.result(_zeros()) for _ in everyone], case.given(_values(rank)), group)
    case.check(gathered)

    case = Case(rank, layout)
    whole = case.result(torch.zeros(N * size, dtype=torch.int32))
    dist.all_gather_into_tensor(whole, case.given(_values(rank)), group)
    case.check([torch.cat(gathered)])

    case = Case(rank, layout)
    dist.reduce_scatter(case.result(_zeros()), [case.given(x) for x in parts[rank]], group=group)
    case.check([mine])

    case = Case(rank, layout)
    dist.reduce_scatter_tensor(
        case.result(_zeros()), case.given(torch.cat(parts[rank])), group=group
    )
    case.check([mine])

    case = Case(rank, layout)
    dist.all_to_all(
        [case.result(_zeros()) for _ in everyone], [case.given(x) for x in parts[rank]], group
    )
    case.check([parts[a][rank] for a in everyone])

    if size > 1:
        case, to, source = Case(rank, layout), (rank + 1) % size, (rank - 1) % size
        works = [
            dist.isend(case.given(_values(rank)), to, group),
            dist.irecv(case.result(_zeros()), source, group),
        ]
        for work in works:
            assert work is not None
            work.wait()
        case.check([_values(source)])


@grid(1, 2, 3, 4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(ranks: Pool, layout: str, hosts: str) -> None:
    ranks(hosts).run(_layouts, layout)


def _single(rank: int, size: int) -> None:
    """all_to_all_single cuts along the first dimension, whatever its stride."""
    source = torch.arange(4 * size * 6).view(6, 4 * size).t() + 1000 * rank
    out = torch.zeros(2, 6, 4 * size, dtype=torch.int64)[1].t()
    dist.all_to_all_single(out, source, group=ring())
    each = torch.arange(4 * size * 6).view(6, 4 * size).t().chunk(size)[rank]
    assert torch.equal(out, torch.cat([each + 1000 * r for r in range(size)]))


@grid(1, 2, 3, 4)
def test_all_to_all_single_of_a_transposed_tensor(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_single)


def _one_element(rank: int, size: int) -> None:
    """A tensor of one element may have any stride; torch calls it contiguous."""
    group, everyone = ring(), range(size)

    def one(value: float) -> torch.Tensor:
        return torch.full((1, 7), float(value))[:, 3]

    def check(tensor: torch.Tensor, value: float) -> None:
        assert tensor.stride() == (7,)
        assert tensor.item() == value

    calls: list[tuple[torch.Tensor, float]] = []
    dist.broadcast(x := one(rank), size - 1, group)
    calls.append((x, size - 1))
    dist.all_reduce(x := one(rank), group=group)
    calls.append((x, sum(everyone)))
    outs = [one(-1) for _ in everyone]
    dist.all_gather(outs, one(rank), group)
    calls += zip(outs, everyone)
    dist.reduce_scatter(x := one(-1), [one(r) for r in everyone], group=group)
    calls.append((x, rank * size))
    outs = [one(-1) for _ in everyone]
    dist.gather(one(rank), outs if rank == 0 else None, 0, group)
    calls += zip(outs, everyone) if rank == 0 else []
    dist.scatter(x := one(-1), [one(r) for r in everyone] if rank == 0 else None, 0, group)
    calls.append((x, rank))
    outs = [one(-1) for _ in everyone]
    dist.all_to_all(outs, [one(r) for r in everyone], group)
    calls += [(out, rank) for out in outs]
    # One row for each rank, of a column.
    column, came = torch.arange(7.0 * size).view(size, 7)[:, 2:3], torch.zeros(size, 7)[:, 5:6]
    dist.all_to_all_single(came, column, [1] * size, [1] * size, group)
    assert came[:, 0].tolist() == [7.0 * rank + 2] * size
    if size > 1:
        work = dist.isend(one(rank), (rank + 1) % size, group)
        dist.recv(x := one(-1), (rank - 1) % size, group)
        calls.append((x, (rank - 1) % size))
        assert work is not None
        work.wait()
    for tensor, value in calls:
        check(tensor, value)


@grid(1, 2, 3, 4)
def test_one_element_of_any_stride(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_one_element)


def _shared_elements(rank: int, size: int) -> None:
    """Elements that share memory may be read, but not written."""
    group, wide = ring(), torch.tensor([[rank + 1.0]]).expand(3, 4)
    out = torch.zeros(size, 3, 4)
    dist.all_gather_into_tensor(out, wide, group)
    assert out[:, 1, 1].tolist() == [r + 1.0 for r in range(size)]
    dist.all_gather(list(out.zero_()), wide, group)
    assert out[:, 1, 1].tolist() == [r + 1.0 for r in range(size)]
    part = torch.zeros(3, 4)
    dist.reduce_scatter(part, [wide] * size, group=group)
    assert part.unique().tolist() == [size * (size + 1) / 2]
    given = [wide] * size if rank == 0 else None
    dist.scatter(part, given, 0, group)
    assert part.unique().tolist() == [1.0]
    dist.gather(wide, list(out.zero_()) if rank == 0 else None, 0, group)
    if rank == 0:
        assert out[:, 1, 1].tolist() == [r + 1.0 for r in range(size)]


@grid(2)
def test_an_expanded_input(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_shared_elements)


def _bits(rank: int, size: int) -> None:
    """torch keeps the sign of these views in the tensor, not in its memory."""
    group, everyone = ring(), range(size)
    z = [torch.tensor([1 + 2j, 3 - 4j]) * (r + 1) for r in everyone]
    negative = [x.conj().imag for x in z]
    assert negative[0].is_neg()
    assert z[0].conj().is_conj()

    out = torch.zeros(2 * size)
    dist.all_gather_into_tensor(out, negative[rank], group)
    assert torch.equal(out, torch.cat(negative))
    dist.all_to_all(list(out.zero_().chunk(size)), [negative[rank]] * size, group)
    assert torch.equal(out, torch.cat(negative))
    part = torch.zeros(2)
    dist.reduce_scatter(part, [negative[rank]] * size, group=group)
    assert torch.equal(part, sum(negative))
    dist.scatter(part, [negative[0]] * size if rank == 0 else None, 0, group)
    assert torch.equal(part, negative[0])

    # torch's dispatcher loses writes to such a view, with every backend. Without the dispatcher:
    backend = group._get_backend(torch.device("cpu"))
    for view, want in ((torch.conj, sum(z)), (lambda x: x.conj().imag, None)):
        x = z[rank].clone()
        backend.allreduce([view(x)], dist.AllreduceOptions()).wait()
        if want is None:
            want = torch.complex(z[rank].real, sum(y.imag for y in z))
        assert torch.equal(x, want)
        for root in everyone:
            x, options = z[rank].clone(), dist.BroadcastOptions()
            options.rootRank = root
            backend.broadcast([view(x)], options).wait()
            assert torch.equal(view(x), view(z[root]))
    outs = [torch.zeros(2, dtype=torch.complex64) for _ in everyone]
    options = dist.distributed_c10d.AllgatherOptions()
    backend.allgather([[x.conj() for x in outs]], [z[rank].conj()], options).wait()
    assert torch.equal(torch.stack(outs), torch.stack(z))


@grid(1, 2, 3, 4)
def test_negative_and_conjugate_views(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_bits)


def _written(rank: int, size: int) -> None:
    """torch counts writes to a tensor; autograd detects a changed saved tensor by the count."""
    group = ring()

    def versions(tensors: list[torch.Tensor], call: Callable[[], object]) -> list[int]:
        before = [x._version for x in tensors]
        call()
        return [x._version - b for x, b in zip(tensors, before)]

    x, y, strided = torch.ones(4), torch.ones(4 * size), torch.ones(8)[::2]
    several = [torch.ones(4) for _ in range(size)]
    assert min(versions([x], lambda: dist.all_reduce(x, group=group))) > 0
    assert min(versions([strided], lambda: dist.all_reduce(strided, group=group))) > 0
    read = versions([x], lambda: dist.all_gather_into_tensor(y, x, group))
    assert read == [0], "it is only read"
    assert min(versions([y], lambda: dist.all_gather_into_tensor(y, x, group))) > 0
    assert min(versions(several, lambda: dist.all_gather(several, x, group))) > 0
    assert min(versions([x], lambda: dist.reduce_scatter_tensor(x, y, group=group))) > 0
    assert min(versions([y], lambda: dist.all_to_all_single(y, y.clone(), group=group))) > 0
    if rank > 0:
        assert min(versions([x], lambda: dist.broadcast(x, 0, group))) > 0
    else:
        dist.broadcast(x, 0, group)


@grid(2)
def test_the_version_of_what_is_written(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_written)


def _parameters(rank: int, size: int) -> None:
    group = ring()
    p = torch.nn.Parameter(torch.full((3,), rank + 1.0))
    dist.broadcast(p, 0, group)
    assert p.tolist() == [1.0] * 3
    dist.all_reduce(p, group=group)
    assert p.tolist() == [float(size)] * 3
    outs = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(outs, p, group)
    assert not any(x.requires_grad for x in outs)
    assert outs[1 - rank].tolist() == [float(size)] * 3
    with torch.inference_mode():
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        dist.all_to_all_single(torch.ones(2), torch.ones(2), group=group)
        w = torch.full((3, 2), float(rank)).t()
        works = [
            dist.all_reduce(y := torch.ones(3, 2).t(), group=group, async_op=True),
            dist.all_gather(ws := [torch.zeros(3, 2).t() for _ in range(size)], w, group, True),
            dist.broadcast(z := torch.full((700, 2), float(rank)).t(), 0, group, True),
            dist.all_to_all_single(torch.ones(600), torch.ones(600), group=group, async_op=True),
        ]
    for work in works:
        work.wait()
    assert x.tolist() == [float(size)] * 3
    assert bool((y == size).all())
    assert bool((z == 0).all())
    assert all(bool((x == r).all()) for r, x in enumerate(ws))
    assert x.is_inference()


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered")
@grid(2)
def test_parameters_and_inference_mode(ranks: Pool, hosts: str) -> None:
    """Programs broadcast parameters; nothing is differentiated here."""
    ranks(hosts).run(_parameters)
