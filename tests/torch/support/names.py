"""The public names of torch.distributed, and those that need no row."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from types import ModuleType

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from tests.torch.support.registry import Row

FUNCTIONAL = "_functional_collectives."

# Names without a row, by kind. A name that this build of torch lacks is no error, because the
# ProcessGroups depend on the build.
WITHOUT_ROW: dict[str, str] = {
    "types of arguments and results": """
        Backend BackendConfig GroupName ProcessGroup ReduceOp reduce_op Work GradBucket DebugLevel
        BuiltinCommHookType Reducer Logger AllreduceCoalescedOptions AllreduceOptions
        AllToAllOptions BarrierOptions BroadcastOptions GatherOptions ReduceOptions
        ReduceScatterOptions ScatterOptions""",
    "classes of torch's own backends": """
        ProcessGroupGloo ProcessGroupNCCL ProcessGroupMPI ProcessGroupUCC ProcessGroupXCCL""",
    "errors": "DistError DistBackendError DistNetworkError DistStoreError QueueEmptyError",
    "stores and rendezvous, which a backend is given": """
        Store PrefixStore FileStore HashStore TCPStore rendezvous register_rendezvous_handler""",
    "constants": "default_pg_timeout",
    "waits for a debugger; other ranks wait in `barrier`": "breakpoint",
    "methods of ProcessGroup that the functions call": """
        ProcessGroup.allreduce ProcessGroup.allreduce_coalesced ProcessGroup.broadcast
        ProcessGroup.reduce ProcessGroup.allgather ProcessGroup.allgather_coalesced
        ProcessGroup.allgather_into_tensor_coalesced ProcessGroup.all_gather_single
        ProcessGroup.all_gather_single_coalesced ProcessGroup.gather ProcessGroup.scatter
        ProcessGroup.reduce_scatter ProcessGroup.reduce_scatter_single
        ProcessGroup.reduce_scatter_single_coalesced
        ProcessGroup.reduce_scatter_tensor_coalesced ProcessGroup.alltoall
        ProcessGroup.alltoall_base ProcessGroup.all_to_all_single ProcessGroup.send
        ProcessGroup.recv ProcessGroup.recv_anysource ProcessGroup.barrier
        ProcessGroup.split_group""",
    "other members of ProcessGroup, implemented by torch": """
        ProcessGroup.merge_remote_group ProcessGroup.use_pg_for_symm_mem_rendezvous
        ProcessGroup.boxed ProcessGroup.unbox ProcessGroup.bound_device_id
        ProcessGroup.BackendType ProcessGroup.UNDEFINED ProcessGroup.GLOO ProcessGroup.NCCL
        ProcessGroup.XCCL ProcessGroup.UCC ProcessGroup.MPI ProcessGroup.CUSTOM""",
    "for CUDA streams; its failure without one depends on the build": "Work.block_current_stream",
    "for torch.compile": f"{FUNCTIONAL}allow_inflight_collective_as_graph_input_ctx",
}


def without_row() -> set[str]:
    return {name for names in WITHOUT_ROW.values() for name in names.split()}


def _own(module: ModuleType, name: str) -> bool:
    """Returns whether a module defines a name, and does not only import it."""
    value = getattr(module, name)
    if name.startswith("_") or isinstance(value, ModuleType):
        return False
    home = getattr(value, "__module__", None) or ""
    return home.startswith("torch.") and (callable(value) or inspect.isclass(value))


def _members(owner: type, prefix: str) -> set[str]:
    return {prefix + name for name in vars(owner) if not name.startswith("_")}


def public() -> set[str]:
    """Returns the names that torch's modules export, and the members of its classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `reduce_op` warns on access
        names = set(c10d.__all__) | {name for name in dir(dist) if _own(dist, name)}
    names |= _members(dist.Work, "Work.") | _members(dist.ProcessGroup, "ProcessGroup.")
    names |= _members(DeviceMesh, "DeviceMesh.")
    collectives = {
        name
        for name in dir(functional)
        if not name.startswith("_")
        and getattr(getattr(functional, name), "__module__", "") == functional.__name__
        and not name.endswith(("_backward", "_setup_context"))  # called by autograd, not by users
    }
    return names | {FUNCTIONAL + name for name in collectives}


def resolve(name: str) -> object:
    owner: object = dist
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner


def problems(rows: Iterable[Row]) -> list[str]:
    """Returns names that only torch has, and names that only the rows have."""
    rowed = {name for row in rows for name in row.names}
    missing = sorted(public() - rowed - without_row())
    gone = sorted(name for name in rowed if not _exists(name))
    both = sorted(rowed & without_row())
    return [
        *(f"torch {torch.__version__} has {name}: no row names it" for name in missing),
        *(f"torch {torch.__version__} has no {name}, which a row names" for name in gone),
        *(f"{name} has a row, and a reason to have none" for name in both),
    ]


def _exists(name: str) -> bool:
    try:
        resolve(name)
    except AttributeError:
        return False
    return True
