"""Tables of supported dtypes, ops and ways, from the extension."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ringkern import _C, build_info, local
from ringkern.choose.explain.answer import LIKE
from ringkern.choose.tables import DEVICES
from ringkern.choose.tuning import COLLECTIVES

from .markdown import code, table

YES, NO = "yes", "-"
RANKS = 2


def dtypes_and_ops() -> str:
    """Returns a row for each dtype and a column for each op, by calls of two CPU ranks."""
    ops = build_info()["ops"]
    with local.Ring(["cpu"] * RANKS) as ring:
        rows = [
            [code(dtype), *(_shown(accepted(ring, dtype, op)) for op in ops)]
            for dtype in build_info()["dtypes"]
        ]
    return table(["dtype", *map(code, ops)], rows)


def accepted(ring: local.Ring, dtype: str, op: str) -> bool:
    """Returns whether the ring reduces this dtype with this op."""
    tensors = [torch.ones(1, dtype=getattr(torch, dtype)) for _ in range(RANKS)]
    try:
        ring.all_reduce(tensors, _reduce_op(op))
    except TypeError:
        return False
    return True


def _reduce_op(op: str) -> dist.ReduceOp:
    if op == "premul_sum":
        return dist._make_nccl_premul_sum(1.0)
    found: dist.ReduceOp = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))
    return found


def ways() -> str:
    """Returns a row for each collective and algorithm, a column for each device and protocol."""
    columns = [(device, protocol) for device in DEVICES for protocol in _C.protocols]
    rows = [
        [
            code(collective),
            code(algorithm),
            *(_shown(has(*c, collective, algorithm)) for c in columns),
        ]
        for collective in (*COLLECTIVES, *LIKE)
        for algorithm in _C.algorithms
    ]
    heads = [f"{device.upper()}, {code(protocol)}" for device, protocol in columns]
    return table(["collective", "algorithm", *heads], [row for row in rows if YES in row])


def has(device: str, protocol: str, collective: str, algorithm: str) -> bool:
    """Returns whether a kind of device has such a collective."""
    return _C.describe(device, collective, algorithm, protocol, RANKS, 1, "float32") is not None


def _shown(there: bool) -> str:
    return YES if there else NO
