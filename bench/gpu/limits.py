"""Measures what this GPU can do, to compare the ring with: see limits.cu."""

from __future__ import annotations

from typing import Any

from bench.gpu import device
from bench.gpu.ll128_probe import json_lines
from bench.gpu.part import Context, Failed

FIGURES = ("launch_us", "hop_us", "hbm_gb_s", "l2_gb_s", "l2_bytes")
# Bytes on the wire for each byte of data: csrc/core/types.h.
_WIRE = {"simple": 1.0, "ll": 2.0, "ll128": 16 / 15}


def run(context: Context) -> None:
    program = context.compile("limits.cu")
    context.needs_gpu()
    lines = json_lines(context.run([str(program)]).stdout)
    context.note(lines=lines, **floors(lines, device.l2_bytes(context.machine)))
    lost = [line["how"] for line in lines if line.get("lost")]
    if lost:
        raise Failed(f"ping-pong: a block waited in vain: {', '.join(lost)}")


def floors(lines: list[dict[str, Any]], l2_bytes: int) -> dict[str, Any]:
    """The few figures that the part ``speed`` compares with.

    ``launch_us``: an empty kernel of a graph, with the ring's arguments; ``hop_us``: a hop of each
    protocol's own kind; ``hbm_gb_s``, ``l2_gb_s``: the best copies, by all multiprocessors.
    """
    hops = {line["how"]: line["ns_per_hop"] / 1e3 for line in lines if line["limit"] == "ping_pong"}

    def hop(kind: str) -> float:
        return next((us for how, us in hops.items() if f"({kind})" in how), 0.0)

    def best(*limits: str) -> float:
        return max((line["gb_s"] for line in lines if line["limit"] in limits), default=0.0)

    launches = [
        line["us"]
        for line in lines
        if line["limit"] == "empty_launch" and line["how"] == "graph, as the ring's"
    ]
    return {
        "launch_us": min(launches, default=0.0),
        "hop_us": {"simple": hop("Simple"), "ll": hop("LL"), "ll128": hop("LL128")},
        "hbm_gb_s": best("hbm_copy", "memcpy_async"),
        "l2_gb_s": best("l2_copy"),
        "l2_bytes": l2_bytes,
    }


def machine_us(known: dict[str, Any], ranks: int, size: int) -> float:
    """The least time of an all-reduce of ranks on one GPU; 0.0 where the limits are not known.

    Any algorithm reads and writes each rank's tensor once: 2kS bytes, at the speed of a copy in
    device memory, or in the L2 where the tensors of all ranks fit into it; and it is launched.
    """
    if not known:
        return 0.0
    fits = ranks * size <= known["l2_bytes"]
    rate = known["l2_gb_s" if fits else "hbm_gb_s"]
    bytes_us = 2 * ranks * size / rate / 1e3 if rate else 0.0
    return max(float(known["launch_us"]), bytes_us)


def ring_us(known: dict[str, Any], protocol: str, ranks: int, size: int) -> float:
    """The least time of a ring over this protocol: 0.0 where the limits are not known.

    The longest of three: the machine's; a launch and 2(k-1) hops; and the ring's own bytes, 2kS of
    the tensors and 4(k-1) times the wire's S of the FIFOs, at the speed of a copy in the L2.
    """
    if not known:
        return 0.0
    latency = known["launch_us"] + 2 * (ranks - 1) * known["hop_us"][protocol]
    moved = (2 * ranks + 4 * (ranks - 1) * _WIRE[protocol]) * size
    bytes_us = moved / known["l2_gb_s"] / 1e3 if known["l2_gb_s"] else 0.0
    return max(machine_us(known, ranks, size), float(latency), bytes_us)
