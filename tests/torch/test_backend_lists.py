"""Lists of tensors that share memory, or seem to share it, with another tensor of the same call."""

from __future__ import annotations

import weakref

import numpy as np
import torch
import torch.distributed as dist

from tests.ranks import Pool, grid
from tests.torch.rings import ring


def _own_lists(rank: int, size: int) -> None:
    """Passes lists that hold the call's other tensor, in its own place or in another. Gloo gets it
    right.
    """
    group, everyone = ring(), range(size)

    def made(lengths: list[int], joined: bool) -> list[torch.Tensor]:
        """Returns pieces of one tensor, or separate tensors."""
        whole = torch.arange(float(sum(lengths)))
        return list(whole.split(lengths)) if joined else [x.clone() for x in whole.split(lengths)]

    def inside(tensors: list[torch.Tensor], place: int) -> torch.Tensor:
        """Returns the tensor in that place, if its length is this rank's."""
        alike = len(tensors[place]) == len(tensors[rank])
        return tensors[place] if alike else torch.zeros(len(tensors[rank]))

    for joined in (False, True):
        for lengths in ([4, 4, 4], [4, 4, 5]):  # in one step, and in a step for each rank
            for place in everyone:
                outs = made(lengths, joined)
                dist.all_gather(outs, inside(outs, place).fill_(rank), group)
                assert [x.unique().tolist() for x in outs] == [[r] for r in everyone]
                ins = [x.fill_(10 * i + rank) for i, x in enumerate(made(lengths, joined))]
                out = inside(ins, place)
                dist.reduce_scatter(out, ins, group=group)
                assert out.unique().tolist() == [30 * rank + 3]
        for root in everyone:
            for place in everyone:
                outs = made([4, 4, 4], joined)
                mine = outs[place].fill_(rank)
                dist.gather(mine, outs if rank == root else None, root, group)
                if rank == root:
                    assert [x.unique().tolist() for x in outs] == [[r] for r in everyone]
                ins = [x.fill_(i) for i, x in enumerate(made([4, 4, 4], joined))]
                dist.scatter(ins[place], ins if rank == root else None, root, group)
                assert ins[place].unique().tolist() == [rank]


@grid(3)
def test_lists_that_hold_the_other_tensor(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_own_lists)


def _scatter_over_its_own_list(rank: int, size: int) -> None:
    """Scatters to an output that overlaps entries of the root's list, its own among them."""
    for root in range(size):
        memory = torch.arange(float(size + 3))
        given = [memory[i : i + 3] for i in range(size)] if rank == root else None
        out = memory[rank + 1 : rank + 4]
        dist.scatter(out, given, root, ring())
        assert out.tolist() == [rank, rank + 1, rank + 2]


@grid(2)
def test_scatter_over_its_own_list(ranks: Pool, hosts: str) -> None:
    ranks(hosts).run(_scatter_over_its_own_list)


def _neighbours_by_chance(rank: int, size: int) -> None:
    """Reduces a list whose tensors are adjacent but have separate storages: the first does not keep
    the memory of the second, which is freed before the call needs it.
    """
    group, out = ring(), torch.zeros(4)
    memory = np.arange(4.0 * size, dtype=np.float32)
    views = [memory[4 * i : 4 * i + 4] for i in range(size)]
    parts = [torch.from_numpy(view) for view in views]
    assert parts[1].data_ptr() == parts[0].data_ptr() + parts[0].nbytes
    last = weakref.ref(views[1])
    if rank == 0:
        dist.barrier()
    work = dist.reduce_scatter(out, parts, group=group, async_op=True)
    assert work is not None
    del parts, views
    if rank == 1:  # adds its own part when that of rank 0 has arrived
        assert last() is None, "the call keeps the tensor, and need not"
        memory[4:] = -1
        dist.barrier()
    work.wait()
    assert out.tolist() == [2 * x for x in range(4 * rank, 4 * rank + 4)]


def test_neighbours_by_chance(ranks: Pool) -> None:
    ranks(2).run(_neighbours_by_chance)
