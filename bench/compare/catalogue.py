"""The contenders: every peer in the configurations that were found to be its best somewhere.

The best configuration depends on the size, so a library is as fast as its fastest one.
Each is the library as a user can have it: options of its own, in its own environment.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from .install import PEERS, VLLM, WITHOUT_RINGKERN, Folder

ADAPTERS = "bench.compare"


@dataclass(frozen=True)
class Configuration:
    """How the ranks of one contender are started.

    Attributes:
        name: as ``openmpi`` or ``openmpi:segring``.
        adapter: its class, as ``module:class``.
        python: the interpreter.
        alone: where ringkern is not imported.
        options: of the adapter.
        variables: of the environment.
        mpiexec: what starts the ranks, with its options; empty: the coordinator does.
        path: folders in which the adapter's module is, other than this package's.
    """

    name: str
    adapter: str
    python: str
    alone: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    mpiexec: tuple[str, ...] = ()
    path: tuple[str, ...] = ()

    @property
    def peer(self) -> str:
        """The library, without its configuration."""
        return self.name.split(":")[0]


# Options of mpiexec and of the environment; "" is what the library does by itself.
_SEGMENTED_RING = "5"
_RABENSEIFNER = "6"
_OB1 = {"pml": "ob1", "coll": "^han,adapt"}
_DYNAMIC = {**_OB1, "coll_tuned_use_dynamic_rules": "1"}
OPENMPI: dict[str, dict[str, str]] = {
    "": {},
    "nocma": {**_OB1, "smsc": "^cma"},
    "segring": {
        **_DYNAMIC,
        "coll_tuned_allreduce_algorithm": _SEGMENTED_RING,
        "coll_tuned_allreduce_algorithm_segmentsize": "262144",
    },
    "rabenseifner": {**_DYNAMIC, "coll_tuned_allreduce_algorithm": _RABENSEIFNER},
}
MPICH: dict[str, dict[str, str]] = {
    "": {},
    "release_gather": {
        "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather",
        "MPIR_CVAR_COLL_SHM_LIMIT_PER_NODE": "1048576",
        "MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "0",
        "MPIR_CVAR_REDUCE_INTRANODE_BUFFER_TOTAL_SIZE": "1048576",
        "MPIR_CVAR_BCAST_INTRANODE_BUFFER_TOTAL_SIZE": "1048576",
    },
}
INTELMPI: dict[str, dict[str, str]] = {"": {}, "a8": {"I_MPI_ADJUST_ALLREDUCE": "8"}}
# Without a thread of its own, which would spin on the rank's core.
_SAME_THREAD = {"CCL_WORKER_COUNT": "1", "CCL_WORKER_OFFLOAD": "0"}
ONECCL: dict[str, dict[str, str]] = {
    "": _SAME_THREAD,
    "ring": {**_SAME_THREAD, "CCL_ALLREDUCE": "ring"},
    "direct": {**_SAME_THREAD, "CCL_ALLREDUCE": "direct"},
}

# For mpi4py; its default, calls of several threads at a time, costs the library locks.
_ONE_THREAD = {"MPI4PY_RC_THREAD_LEVEL": "single"}


def names_of(peer: str) -> list[str]:
    """The names of a peer's configurations, as ``["mpich", "mpich:release_gather"]``."""
    table = {"openmpi": OPENMPI, "mpich": MPICH, "intelmpi": INTELMPI, "oneccl": ONECCL}
    return [f"{peer}:{name}" if name else peer for name in table.get(peer, {"": {}})]


def check_names(asked: list[str]) -> None:
    """Raises ValueError where a name is neither a peer's nor a configuration's."""
    known = [name for peer in PEERS for name in names_of(peer)]
    for name in asked:
        if name.split(":")[0] == "nccl":
            raise ValueError(
                "'nccl': takes GPUs, and these are calls on a CPU; `make gpu` measures beside NCCL"
            )
        if name not in known:
            raise ValueError(f"{name!r}: choose of {', '.join(known)}")


def select(asked: list[str], folder: Folder) -> tuple[list[Configuration], dict[str, str]]:
    """The configurations of the peers that are installed; and why others are left out, by peer.

    A peer's name stands for all its configurations.
    """
    chosen: list[Configuration] = []
    left_out: dict[str, str] = {}
    for name in asked:
        for each in names_of(name) if name in PEERS else [name]:
            made = _make(each, folder)
            if isinstance(made, str):
                left_out[each.split(":")[0]] = made
            elif made not in chosen:
                chosen.append(made)
    return chosen, left_out


def ringkern(algorithm: str, protocol: str, shared: bool = False) -> Configuration:
    """ringkern itself, of the running interpreter; ``shared``: tensors of its own making."""
    return Configuration(
        "ringkern:shared" if shared else "ringkern",
        f"{ADAPTERS}.own_adapters:RingKern",
        sys.executable,
        alone=False,
        options={"algorithm": algorithm, "protocol": protocol, "shared": shared},
    )


def limit(loop: str) -> Configuration:
    """Bare data movement, by the library ``loops/bare.cpp``; "": a copy, by torch."""
    adapter = f"{ADAPTERS}.own_adapters:{'Bare' if loop else 'Copy'}"
    options = {"loop": loop}
    return Configuration("limit", adapter, sys.executable, alone=False, options=options)


def _make(name: str, folder: Folder) -> Configuration | str:
    """A configuration, or why there is none."""
    peer, _, variant = name.partition(":")
    missing = f"not installed; python -m bench.compare install --vs {peer}"
    if peer == "gloo":
        return _torch(name, "Gloo", folder)
    if peer in ("deepspeed", "vllm"):
        library = folder.found({"deepspeed": "deepspeed_shm_comm", "vllm": "vllm_shm"}[peer])
        made = _torch(name, {"deepspeed": "DeepSpeed", "vllm": "Vllm"}[peer], folder, library)
        return made if library else missing
    environment = "intel" if peer in ("intelmpi", "oneccl") else peer
    python = folder.python(environment)
    mpiexec = python.with_name("mpiexec")
    loop = folder.found(f"{peer}_loop")
    if not mpiexec.exists() or (peer == "oneccl" and not loop):
        return missing
    start: tuple[str, ...] = (str(mpiexec),)
    variables = dict(_ONE_THREAD)
    if peer == "openmpi":
        start += ("--oversubscribe", "--bind-to", "none")
        start += ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        options = {"btl_base_warn_component_unused": "0", **OPENMPI[variant]}
        start += tuple(word for option in options.items() for word in ("--mca", *option))
    elif peer == "mpich":
        variables |= MPICH[variant]
    else:
        root = folder.environment("intel")
        variables |= {
            "I_MPI_ROOT": str(root),
            "FI_PROVIDER_PATH": str(root / "lib" / "libfabric"),
            "I_MPI_FABRICS": "shm",
            "I_MPI_PIN": "0",
            "I_MPI_HYDRA_IFACE": "lo",
            **(INTELMPI[variant] if peer == "intelmpi" else ONECCL[variant]),
        }
        if peer == "oneccl":
            variables |= {"CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"}
    adapter = f"{ADAPTERS}.adapters:{'OneCcl' if peer == 'oneccl' else 'Mpi'}"
    return Configuration(
        name, adapter, str(python), options={"loop": loop}, variables=variables, mpiexec=start
    )


def _torch(name: str, adapter: str, folder: Folder, library: str = "") -> Configuration:
    python = folder.python("torch")
    own = python if python.exists() else sys.executable  # which has torch, but no loops for it
    options = {"loop": folder.found("torch_loop"), "library": library, "version": VLLM}
    return Configuration(
        name,
        f"{ADAPTERS}.torch_adapters:{adapter}",
        str(own),
        options=options,
        variables=WITHOUT_RINGKERN,
    )
