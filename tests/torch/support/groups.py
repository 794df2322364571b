"""Probes of groups, from creation to end, and of functions without communication."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.torch.support.data import digits, same
from tests.torch.support.registry import expect, row

SECTION = "Groups"
SECONDS = timedelta(seconds=60)
SOON = timedelta(seconds=0.5)


@contextmanager
def own_group(set_to: timedelta | None = None) -> Iterator[dist.ProcessGroup]:
    """Makes a group for one probe, which a missed deadline may leave unusable. All ranks leave it
    together.
    """
    group = dist.new_group(timeout=SECONDS)
    # connects, which must not count against the deadline
    dist.all_reduce(torch.ones(1), group=group)
    if set_to:
        group.set_timeout(set_to)
    try:
        yield group
    finally:
        dist.barrier()
        dist.destroy_process_group(group)


def works(group: dist.ProcessGroup | None, ranks: list[int]) -> None:
    """Checks a sum and messages around the group."""
    me = ranks.index(dist.get_rank())
    x = digits(me).float()
    dist.all_reduce(x, group=group)
    same(x, torch.stack([digits(i).float() for i in range(len(ranks))]).sum(0))
    x = digits(me).float()
    dist.broadcast(x, group=group, group_src=len(ranks) - 1)
    same(x, digits(len(ranks) - 1).float())
    if len(ranks) > 1:
        work = dist.isend(digits(me).float(), group=group, group_dst=(me + 1) % len(ranks))
        got = torch.zeros(27)
        dist.recv(got, group=group, group_src=me - 1 if me else len(ranks) - 1)
        work.wait()
        same(got, digits((me - 1) % len(ranks)).float())


def _again(rank: int, size: int, method: str) -> None:
    backend = dist.get_backend()
    dist.destroy_process_group()
    expect(not dist.is_initialized(), "still there after destroy_process_group")
    dist.init_process_group(
        backend, init_method=method, rank=rank, world_size=size, timeout=SECONDS
    )
    expect(dist.get_backend() == backend, f"the backend is {dist.get_backend()}")
    works(None, list(range(size)))


def _agreed(rank: int, text: str) -> str:
    things = [text if rank == 0 else None]
    dist.broadcast_object_list(things, src=0)
    return str(things[0])


@row(SECTION, "init_process_group destroy_process_group", "`file://`, again in the same processes")
def init_file(rank: int, size: int) -> None:
    folder = _agreed(rank, tempfile.mkdtemp(prefix="ringkern-test-") if rank == 0 else "")
    _again(rank, size, f"file://{folder}/store")
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


@row(SECTION, "init_process_group destroy_process_group", "`tcp://`, again in the same processes")
def init_tcp(rank: int, size: int) -> None:
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = own.port
    del own  # the port was free a moment ago
    _again(rank, size, f"tcp://127.0.0.1:{_agreed(rank, str(port))}")


@row(SECTION, "init_process_group destroy_process_group", "`store=`, again in the same processes")
def init_store(rank: int, size: int) -> None:
    """Rank 0 serves the store until the end of the default group, which uses it."""
    backend = dist.get_backend()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = int(_agreed(rank, str(store.port)))
    if rank:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.destroy_process_group()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=SECONDS)
    works(None, list(range(size)))


@row(SECTION, "new_group")
def new_group(rank: int, size: int) -> None:
    for ranks in ([0, 1], [1, 2], [0, 2], [2], [0, 1, 2]):
        group = dist.new_group(ranks, timeout=SECONDS)
        if rank in ranks:
            works(group, ranks)
            dist.destroy_process_group(group)


@row(SECTION, "new_group", "`use_local_synchronization=True`")
def new_group_local(rank: int, size: int) -> None:
    if rank:
        group = dist.new_group([1, 2], timeout=SECONDS, use_local_synchronization=True)
        works(group, [1, 2])
        dist.destroy_process_group(group)


@row(SECTION, "new_group", "`sort_ranks=False`")
def new_group_unsorted(rank: int, size: int) -> None:
    group = dist.new_group([2, 0, 1], timeout=SECONDS, sort_ranks=False)
    expect(dist.get_rank(group) == [1, 2, 0][rank], f"the rank is {dist.get_rank(group)}")
    works(group, [2, 0, 1])
    dist.destroy_process_group(group)


@row(SECTION, "new_group", "of another backend (`cpu:gloo`)")
def new_group_other(rank: int, size: int) -> None:
    group = dist.new_group(backend="cpu:gloo", timeout=SECONDS)
    works(group, list(range(size)))
    works(None, list(range(size)))
    dist.destroy_process_group(group)


@row(SECTION, "new_subgroups")
def new_subgroups(rank: int, size: int) -> None:
    mine, groups = dist.new_subgroups(group_size=1, timeout=SECONDS)
    expect(len(groups) == size and mine is groups[rank], "not one group a rank")
    works(mine, [rank])
    dist.destroy_process_group(mine)


@row(SECTION, "new_subgroups_by_enumeration")
def new_subgroups_by_enumeration(rank: int, size: int) -> None:
    parts = [[0, 2], [1]]
    mine, _ = dist.new_subgroups_by_enumeration(parts, timeout=SECONDS)
    works(mine, next(ranks for ranks in parts if rank in ranks))
    dist.destroy_process_group(mine)


@row(SECTION, "split_group", remark="torch itself refuses it without an accelerator")
def split_group(rank: int, size: int) -> None:
    group = dist.split_group(None, [[0, 2], [1]])
    works(group, [0, 2] if rank != 1 else [1])


@row(SECTION, "shrink_group")
def shrink_group(rank: int, size: int) -> None:
    group = dist.new_group(timeout=SECONDS)
    if rank < 2:
        works(dist.shrink_group([2], group=group), [0, 1])


@row(SECTION, "ProcessGroup.abort ProcessGroup.shutdown")
def abort(rank: int, size: int) -> None:
    """Ends an idle group, after which the default group goes on."""
    for end in ("abort", "shutdown"):
        group = dist.new_group(timeout=SECONDS)
        works(group, list(range(size)))
        dist.barrier()  # no rank is still at work
        getattr(group, end)()
        works(None, list(range(size)))
        dist.destroy_process_group(group)


def _counted(read: Callable[[], int]) -> None:
    before = read()
    for _ in range(3):
        dist.all_reduce(torch.zeros(1))
    expect(read() - before == 3, f"3 collectives count as {read() - before}")


SEQUENCE = "ProcessGroup._get_sequence_number_for_group"
ASKS_SOME = "torch itself asks its own backends only"


@row(SECTION, SEQUENCE, "counts collectives", remark=ASKS_SOME)
def sequence(rank: int, size: int) -> None:
    _counted(c10d._get_default_group()._get_sequence_number_for_group)


@row(SECTION, SEQUENCE, "asked of the backend (`ProcessGroup._get_backend`)")
def sequence_of_backend(rank: int, size: int) -> None:
    _counted(_backend()._get_sequence_number_for_group)


def _backend() -> dist._Backend:
    return c10d._get_default_group()._get_backend(torch.device("cpu"))


MESH = "DeviceMesh.device_type DeviceMesh.mesh DeviceMesh.mesh_dim_names DeviceMesh.ndim"
MESH += " DeviceMesh.shape DeviceMesh.size DeviceMesh.get_rank DeviceMesh.get_local_rank"
MESH += " DeviceMesh.get_coordinate"


@row(SECTION, "init_device_mesh DeviceMesh DeviceMesh.get_group DeviceMesh.get_all_groups")
def mesh(rank: int, size: int) -> None:
    both = init_device_mesh("cpu", (1, size), mesh_dim_names=("one", "all"))
    works(both.get_group("all"), list(range(size)))
    works(both["one"].get_group(), [rank])
    expect(len(both.get_all_groups()) == 2, "not two groups")


@row(SECTION, "DeviceMesh.from_group")
def mesh_of_group(rank: int, size: int) -> None:
    group = dist.new_group(timeout=SECONDS)
    whole = DeviceMesh.from_group(group, "cpu")
    works(whole.get_group(), list(range(size)))


# ---- Without communication -----------------------------------------------------------------------

LOCAL = "Without communication"


@row(LOCAL, MESH)
def mesh_queries(rank: int, size: int) -> None:
    whole = init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    expect(whole.device_type == "cpu" and whole.ndim == 1 and whole.shape == (size,), "the mesh")
    expect(whole.mesh.tolist() == list(range(size)), "the ranks of the mesh")
    expect(whole.mesh_dim_names == ("all",) and whole.size() == size, "the names")
    own = (whole.get_rank(), whole.get_local_rank(), *(whole.get_coordinate() or ()))
    expect(own == (rank,) * 3, "the rank in the mesh")


QUERIES = "is_initialized get_rank get_world_size get_backend get_backend_config get_pg_count"
QUERIES += " get_process_group_ranks get_group_rank get_global_rank get_node_local_rank group"
QUERIES += " GroupMember ProcessGroup.rank ProcessGroup.size ProcessGroup.group_name"
QUERIES += " ProcessGroup.group_desc ProcessGroup.get_group_store"


@row(LOCAL, QUERIES)
def queries(rank: int, size: int) -> None:
    group = c10d._get_default_group()
    backend = dist.get_backend()
    expect(dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) == (rank, size), "")
    expect(f"cpu:{backend}" in str(dist.get_backend_config()), "get_backend_config")
    expect(dist.get_pg_count() >= 1 and dist.group.WORLD is group, "get_pg_count, group")
    expect(dist.GroupMember.WORLD is group, "GroupMember")
    expect(dist.get_process_group_ranks(group) == list(range(size)), "get_process_group_ranks")
    expect(dist.get_group_rank(group, rank) == rank == dist.get_global_rank(group, rank), "ranks")
    expect(dist.get_node_local_rank(fallback_rank=rank) == rank, "get_node_local_rank")
    expect((group.rank(), group.size()) == (rank, size), "ProcessGroup.rank and size")
    expect(isinstance(group.group_name, str) and isinstance(group.group_desc, str), "names")
    store = group.get_group_store()
    store.set(f"query/{rank}", "1")
    expect(store.get(f"query/{rank}") == b"1", "get_group_store")


AVAILABLE = "is_available is_backend_available is_gloo_available is_mpi_available"
AVAILABLE += " is_nccl_available is_ucc_available is_xccl_available is_torchelastic_launched"
AVAILABLE += " get_default_backend_for_device supports_complex get_debug_level set_debug_level"
AVAILABLE += " set_debug_level_from_env"


@row(LOCAL, AVAILABLE)
def available(rank: int, size: int) -> None:
    expect(dist.is_available() and dist.is_backend_available(dist.get_backend()), "available")
    for name in ("gloo", "mpi", "nccl", "ucc", "xccl"):
        expect(getattr(dist, f"is_{name}_available")() in (True, False), f"is_{name}_available")
    expect(dist.is_torchelastic_launched() in (True, False), "is_torchelastic_launched")
    expect(dist.get_default_backend_for_device("cpu") == "gloo", "another default for the CPU")
    expect(dist.supports_complex(dist.ReduceOp.SUM), "supports_complex")
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.INFO)
    expect(dist.get_debug_level() == dist.DebugLevel.INFO, "set_debug_level")
    dist.set_debug_level(before)
    dist.set_debug_level_from_env()


@row(LOCAL, "ProcessGroup.name")
def name(rank: int, size: int) -> str:
    return f"`{c10d._get_default_group().name()}`"
