from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

torch_version: str
version: str
wire_version: int
# csrc/core/choice.h: for each list rows of (below how many bytes, algorithm, protocol).
WayLists = dict[str, list[tuple[int, str, str]]]
# csrc/torch/communicator.h: a key in the store, each rank's pid and start, seconds waited.
Roster = tuple[str, list[tuple[int, int]], float]
# csrc/torch/trace.cpp: channel, loop, step, verb, owner, offset, count, start, end in ns, and how
# much of that was waiting for prev and for next.
TimedRow = tuple[int, int, int, str, int, int, int, int, int, int, int]
protocols: tuple[str, ...]
algorithms: tuple[str, ...]
# csrc/core/choice.h: the names of the lists, and the most rows of each.
lists: tuple[str, ...]
most_rows: int
most_ranks: int
# csrc/core/orders.h: how many orders a ring takes, and of how many ranks.
most_orders: int
most_ordered_ranks: int

def ops_of(dtype: str) -> list[str]: ...
def ways_on(device: str) -> list[tuple[str, str]]: ...
def is_there(
    device: str, algorithm: str, protocol: str, in_rank_order: bool, wide: bool
) -> bool: ...
def not_by_ring(collective: str, dtype: str, in_rank_order: bool, wide: bool) -> str | None: ...
def why_not(
    device: str,
    collective: str,
    ranks: int,
    dtype: str,
    way: tuple[str, str],
    algorithm: str,
    protocol: str,
    in_rank_order: bool,
    wide: bool,
) -> str: ...
def describe(
    device: str,
    collective: str,
    algorithm: str,
    protocol: str,
    ranks: int,
    count: int,
    dtype: str,
) -> dict[str, int] | None: ...
def cpu_segment() -> list[tuple[str, int, int]]: ...
def cpu_line(protocol: str, step: int) -> bytes: ...
def cpu_direct_trace(
    algorithm: str, ranks: int, count: int, element_bytes: int
) -> list[tuple[str, int, int, int]]: ...
def choose(
    device: str,
    lists: WayLists,
    collective: str,
    dtype: str,
    nbytes: int,
    algorithm: str,
    protocol: str,
    in_rank_order: bool,
    wide: bool,
) -> tuple[str, str]: ...
def build_info() -> dict[str, Any]: ...
def use_cuda_memory(choice: str) -> None: ...
def make_backend(
    store: dist.Store,
    rank: int,
    size: int,
    global_ranks: list[int],
    timeout_s: float,
    algorithm: str,
    protocol: str,
    in_rank_order: bool,
    wide: bool,
    maker: Any,
    waits: bool = False,
) -> dist.distributed_c10d.Backend: ...
def renewal_of(group: dist.ProcessGroup) -> str: ...

class Members: ...

def make_members(
    store: dist.Store,
    name: str,
    rank: int,
    size: int,
    timeout_s: float,
    tables: dict[str, WayLists],
    roster: Roster = ("", [], 0.0),
    find_orders: Callable[[list[str], int], list[list[int]]] | None = None,
    on_fault: str = "",
    threads: int = 1,
    host_of: list[int] = [],
    host_names: list[str] = [],
    engine: Callable[[str, list[int]], Backend] | None = None,
    inter_host_costs: dict[str, tuple[int, int, bool]] = {},
) -> Members: ...
def this_process() -> tuple[int, int]: ...
def find_gone(roster: Roster, left: Callable[[], str]) -> tuple[int, str] | None: ...
def close_backends(patience_s: float) -> None: ...
def quick_all_reduce(
    tensor: Any,
    op: Any,
    group: dist.ProcessGroup | None,
    async_op: bool,
    protocol: str,
    algorithm: str,
    deterministic: str,
    accumulate: str,
    /,
) -> bool: ...
def ring_orders(
    find: Callable[[list[str], int], list[list[int]]] | None, buses: list[str], channels: int
) -> list[list[int]]: ...
def shared_empty(sizes: list[int], dtype: torch.dtype) -> torch.Tensor: ...
def is_shared(tensor: torch.Tensor) -> bool: ...
def share_by_default(on: bool) -> None: ...
def remember(group: dist.ProcessGroup, communicator: Communicator) -> None: ...
def recorded_calls() -> list[dict[str, Any]]: ...
def next_news() -> tuple[str, str] | None: ...
def open_news() -> None: ...
def close_news() -> None: ...
def dump_on(signal: int) -> bool: ...

class Plan:
    def __init__(
        self,
        collective: str,
        protocol: str,
        ranks: int,
        count: int,
        element_bytes: int,
        *,
        workers: int = 1,
        channels: int = 1,
        slots: int = 8,
        slot_bytes: int = 0,
        orders: Sequence[Sequence[int]] = ...,
        root: int = 0,
    ) -> None: ...
    @property
    def ranks(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def loops(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def grain(self) -> int: ...
    def next(self, rank: int, channel: int = 0) -> int: ...
    def prev(self, rank: int, channel: int = 0) -> int: ...
    def position(self, rank: int, channel: int = 0) -> int: ...
    def rank_at(self, position: int, channel: int = 0) -> int: ...
    def chunk_of(self, channel: int, loop: int, owner: int) -> tuple[int, int, int]: ...
    def slices(self, count: int) -> list[tuple[int, int]]: ...
    def trace(self, rank: int, channel: int = 0) -> list[tuple[str, int, int, int, int]]: ...

class Stages:
    most: int
    under_way: int
    little_bytes: int
    def __init__(
        self,
        count: int,
        element_bytes: int,
        rails: int,
        hosts: int,
        inside: bool,
        inter_host_cost: tuple[int, int, bool],
    ) -> None: ...
    @property
    def rails(self) -> int: ...
    @property
    def long_stages(self) -> int: ...

class Runner:
    def set_on_fault(self, policy: str) -> None: ...
    def set_threads(self, threads: int) -> None: ...
    def set_orders(self, find: Callable[[list[str], int], list[list[int]]] | None) -> None: ...
    def set_roster(self, roster: Roster) -> None: ...
    def set_table(self, device: str, lists: WayLists) -> None: ...
    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        algorithm: str,
        protocol: str,
        in_rank_order: bool,
        wide: bool,
        async_op: bool,
    ) -> dist.Work | None: ...
    def all_reduce_residual_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        algorithm: str,
        protocol: str,
        in_rank_order: bool,
        wide: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...
    def reduce_scatter(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        protocol: str,
        async_op: bool,
    ) -> dist.Work | None: ...
    def all_gather(
        self, output: torch.Tensor, input: torch.Tensor, protocol: str, async_op: bool
    ) -> dist.Work | None: ...
    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool) -> dist.Work | None: ...
    def time_all_reduce(
        self,
        tensor: torch.Tensor,
        calls: int,
        algorithm: str = "auto",
        protocol: str = "auto",
        in_rank_order: bool = False,
        wide: bool = False,
    ) -> list[int]: ...
    def table(self, device: str) -> WayLists: ...
    def shared_memory(self) -> tuple[str, list[str]]: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...
    def abort(self, reason: str) -> None: ...
    def shut_out(self, members: list[int], patience_s: float) -> None: ...
    def close(self, patience_s: float = -1.0) -> None: ...

class Round:
    @property
    def members(self) -> list[int]: ...
    @property
    def address(self) -> str: ...
    @property
    def joiners(self) -> int: ...
    @property
    def processes(self) -> list[tuple[int, int]]: ...
    @property
    def calls(self) -> list[tuple[int, int]]: ...

class PageStore:
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, value: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...

class Communicator(Runner):
    def __init__(
        self, store: dist.Store | PageStore, name: str, rank: int, size: int, timeout_s: float
    ) -> None: ...
    @property
    def failed(self) -> bool: ...
    @property
    def devices(self) -> list[str]: ...
    def connect(self, device: str) -> None: ...
    def gather(
        self,
        excluded: list[int],
        patience_s: float,
        propose: Callable[[list[int]], tuple[str, int]],
    ) -> Round: ...
    def meeting_of(self, round: Round) -> PageStore: ...
    def conclude(self, round: Round, joined: bool, patience_s: float) -> bool: ...
    def record_all_reduce(self, tensor: torch.Tensor, protocol: str) -> list[TimedRow]: ...

class HostsCommunicator(Runner):
    def __init__(
        self,
        store: dist.Store,
        name: str,
        rank: int,
        host_of: list[int],
        host_names: list[str],
        timeout_s: float,
        engine: Callable[[str, list[int]], Backend],
        inter_host_costs: dict[str, tuple[int, int, bool]] = {},
    ) -> None: ...
    def calls(self) -> tuple[int, int]: ...

class LocalRing:
    def __init__(self, devices: list[str], timeout_s: float, on_fault: str = "") -> None: ...
    def set_table(self, lists: WayLists) -> None: ...
    def all_reduce(
        self,
        tensors: list[torch.Tensor],
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        algorithm: str,
        protocol: str,
        in_rank_order: bool,
        wide: bool,
    ) -> None: ...
    def reduce_scatter(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        protocol: str,
    ) -> None: ...
    def all_gather(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], protocol: str
    ) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...
    def abort(self, reason: str) -> None: ...
    def close(self, patience_s: float = -1.0) -> None: ...
