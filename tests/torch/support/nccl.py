"""Statements of PyTorch's documentation about NCCL. Nothing here was run or concluded.

A fact from a docstring quotes it; `problems` looks the quotes up in the installed torch.
The page is docs/source/distributed.md of PyTorch, published as
https://docs.pytorch.org/docs/stable/distributed.html.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import NamedTuple

from tests.torch.support.names import resolve
from tests.torch.support.registry import Row

TABLE = "table"  # "Backends" on the page
PAGE = "page"  # elsewhere on the page


class Fact(NamedTuple):
    """A cell of the column."""

    verdict: str  # "yes", "no", or "generally": about the function, without naming a backend
    source: str  # TABLE, PAGE, or the name whose docstring has the quote
    quote: str = ""
    only: tuple[str, ...] = ()  # cases of the row that the fact is about
    but: tuple[str, ...] = ()  # cases that are not supported
    says: str = ""  # in place of the verdict in the cell


COMPLEX = ("complex64", "complex128")
COMPLEX_TOO = "Complex tensors are supported."
SIZES_TOO = "Complex and uneven sized tensors are supported."
NO_BITS = "``BAND``, ``BOR``, and ``BXOR`` reductions are not available when using the ``NCCL``"
NO_TAG = "``tag`` is not supported with the NCCL backend."
ANY_SOURCE = "Will receive from any process if unspecified."
OBJECTS = "internal tensor representations of objects must be moved to the GPU device"
GATHER_SINGLE = "all_gather_single, all_gather_into_tensor"
SCATTER_SINGLE = "reduce_scatter_single, reduce_scatter_tensor"

IN_TABLE = (
    *("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "reduce_scatter"),
    *("all_to_all", "barrier", "send, recv"),
)
# "Every collective operation function supports the following two kinds of operations"
ASYNC = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "gather"),
    *("all_gather_coalesced", "scatter", "reduce_scatter", "all_to_all", "all_to_all_single"),
    *("barrier", GATHER_SINGLE, SCATTER_SINGLE),
)
# "All out-of-the-box backends (gloo, nccl, mpi) are supported"
PROFILED = (
    *("all_reduce", "broadcast", "barrier"),
    *("all_gather_single", "all_to_all_single", "send, recv"),
)


def _equal_sizes(name: str) -> Fact:
    quote = f"all Tensors in {name}_list must have the same size"
    return Fact("generally", name, quote, says="generally no")


FACTS: dict[str, Fact] = {
    **{name: Fact("yes", TABLE) for name in IN_TABLE},
    **{f"{name}: `async_op=True`": Fact("generally", PAGE) for name in ASYNC},
    # Collectives
    **{
        f"{name}: dtypes": Fact("generally", name, COMPLEX_TOO, only=COMPLEX)
        for name in ("all_reduce", "scatter", "all_to_all", "all_to_all_single")
    },
    "all_gather: dtypes": Fact("generally", "all_gather", SIZES_TOO, only=COMPLEX),
    "all_gather: uneven sizes": Fact("generally", "all_gather", SIZES_TOO),
    "gather: uneven sizes": _equal_sizes("gather"),
    "scatter: uneven sizes": _equal_sizes("scatter"),
    "all_to_all_single: uneven splits": Fact(
        "generally", "all_to_all_single", "Input split sizes for dim 0"
    ),
    f"{GATHER_SINGLE}: output stacked": Fact(
        "generally", "all_gather_single", "a stack of all the input tensors"
    ),
    f"{SCATTER_SINGLE}: input stacked": Fact(
        "generally", "reduce_scatter_single", "a stack of the output tensors"
    ),
    **{
        f"{name}: ops": Fact("yes", "ReduceOp", NO_BITS, but=("BAND", "BOR", "BXOR"))
        for name in ("all_reduce", "reduce", "reduce_scatter", SCATTER_SINGLE)
    },
    "monitored_barrier": Fact(
        "no", "monitored_barrier", "this collective is only supported with the GLOO backend"
    ),
    # Messages and objects
    "isend, irecv: receives posted in another order, told apart by `tag`": Fact(
        "no", "irecv", NO_TAG
    ),
    "isend, irecv: to oneself": Fact(
        "generally", "isend", "isend allows src == dst rank, i.e. send to self."
    ),
    "recv: from any rank (`src=None`)": Fact("generally", "recv", ANY_SOURCE),
    "recv: from any rank, with a `tag`": Fact("no", "recv", NO_TAG),
    "irecv: from any rank, several at once": Fact("generally", "irecv", ANY_SOURCE),
    "batch_isend_irecv, P2POp": Fact(
        "yes", "batch_isend_irecv", "NCCL, Gloo, and UCC backend are currently supported."
    ),
    "batch_isend_irecv, P2POp: receives first, several a pair, of several sizes": Fact(
        "generally",
        "batch_isend_irecv",
        "the relative ordering of sends vs. receives in the list does not matter",
    ),
    "batch_isend_irecv, P2POp: by some ranks of the group only": Fact(
        "yes",
        "batch_isend_irecv",
        "all ranks of the ``group`` must participate in this API call; otherwise, the behavior is",
        says="yes, unless it is the group's first call",
    ),
    **{
        name: Fact("yes", name, OBJECTS)
        for name in ("all_gather_object", "gather_object", "broadcast_object_list")
    },
    "send_object_list, recv_object_list": Fact("yes", "send_object_list", OBJECTS),
    "recv_object_list: from any rank (`src=None`)": Fact(
        "generally", "recv_object_list", "Will receive from any rank if set to None"
    ),
    # Groups
    **{
        f"init_process_group, destroy_process_group: {way}, again in the same processes": Fact(
            "generally", PAGE, says='generally "unsupported/untested"'
        )
        for way in ("`file://`", "`tcp://`", "`store=`")
    },
    **{
        name: Fact("yes", name, "valid values are ``gloo`` and ``nccl``")
        for name in ("new_group", "new_subgroups", "new_subgroups_by_enumeration")
    },
    "new_group: `use_local_synchronization=True`": Fact(
        "generally", "new_group", "perform a group-local barrier"
    ),
    "split_group": Fact("yes", "split_group", "Only the ``NCCL`` and custom plugin backends"),
    # Work
    "Work.get_future: of a collective": Fact(
        "yes", "Work.get_future", "``get_future`` API supports NCCL"
    ),
    "Work.get_future: `then`": Fact(
        "yes", "Work.get_future", "``fut.then()`` will return another ``CUDAFuture``"
    ),
    "Work.get_future: of `irecv`": Fact(
        "yes", "Work.get_future", "``get_future`` API supports NCCL"
    ),
    "Work.get_future_result": Fact(
        "yes", "Work.get_future_result", "``get_future_result`` API supports NCCL"
    ),
    # Deadlines
    "new_group: `timeout=` holds for a collective that a rank misses": Fact(
        "yes",
        "init_process_group",
        "collectives will be aborted asynchronously and the process will crash",
        says="aborts, and the process crashes",
    ),
    "Work.wait: `timeout=` of a collective that a rank misses": Fact(
        "yes", "Work.wait", "it will block the CPU thread until the NCCL work is completed or timed"
    ),
    "barrier: `timeout=` when a rank is missing": Fact(
        "generally", "barrier", "Timeout for barrier."
    ),
    "monitored_barrier: names the rank that is missing": Fact(
        "no", "monitored_barrier", "this collective is only supported with the GLOO backend"
    ),
    # Profiler and debugging
    **{f"{name}: event of the profiler": Fact("yes", PAGE) for name in PROFILED},
    "record_comm: names the event": Fact("yes", "record_comm", "This works across all backends"),
    "set_debug_level: `DETAIL` finds tensors of different sizes": Fact("yes", PAGE),
}


def problems(rows: Iterable[Row]) -> list[str]:
    """Returns facts without a row, and quotes that the installed torch's docstrings lack."""
    keys = {row.key for row in rows}
    found = [f"a fact of NCCL names no row: {key}" for key in FACTS if key not in keys]
    for key, fact in FACTS.items():
        if fact.source in (TABLE, PAGE):
            continue
        documented = re.sub(r"\s+", " ", inspect.getdoc(resolve(fact.source)) or "")
        if fact.quote not in documented:
            found.append(f"{key}: the docstring of {fact.source} has no {fact.quote!r}")
    return found
