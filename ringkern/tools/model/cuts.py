"""The cut of an all-reduce of float32 by csrc/cuda, among ranks that share a GPU.

The ring's plan is the extension's own (csrc/core/plan.h). The rest follows ``launch.h``,
``mesh.h``, ``shape.cpp`` and ``local.cpp`` of csrc/cuda, so that it is available if ringkern was
built without CUDA. A test compares it with an extension that has CUDA, and with the sources.
"""

from __future__ import annotations

from typing import NamedTuple

from ..._C import Plan

ELEMENT_BYTES = 4
WORKERS = 352  # maximum threads of a block that move data
SLOTS = 4
SLOT_BYTES = {"simple": 44 << 10, "ll": 4 * WORKERS * 16, "ll128": 20 << 10}
FIFO_BUDGET = 22 << 20  # bytes: for Simple, of all ranks of a launch
BLOCKS_PER_MULTIPROCESSOR = 2
MOST_CHANNELS = 64
# Bytes of a chunk that a channel should have before another one helps, and that a warp moves at
# once. The all-reduces without the ring use LL's.
CHANNEL_SHARE = {"simple": 2 << 10, "ll": 1 << 10, "ll128": 2 * 960}
WARP_SHARE = {"simple": 4 * 16 * 32, "ll": 8 * 32, "ll128": 960}
# The mesh of each channel: bytes, slots per peer, and bytes of a counter and of a grain.
MESH_BYTES, MESH_SLOTS, COUNTER_BYTES, GRAIN_BYTES = 128 << 10, 2, 128, 64


class Cut(NamedTuple):
    """The cut of a call without the ring: elements of a chunk, and of a rank's part of it."""

    channels: int
    rounds: int
    chunk: int
    part: int


def divided(number: int, by: int) -> int:
    """Returns a quotient, rounded up."""
    return -(-number // by)


def channels_of(multiprocessors: int, ranks: int) -> int:
    """Returns the channels whose blocks the multiprocessors hold, and whose FIFOs the L2 holds."""
    cached = FIFO_BUDGET // (SLOTS * SLOT_BYTES["simple"])
    held = min(multiprocessors * BLOCKS_PER_MULTIPROCESSOR, cached)
    return max(1, min(held // ranks, MOST_CHANNELS))


def warps_of(chunk_bytes: int, protocol: str) -> int:
    """Returns the number of warps of a block that move data."""
    return min(max(divided(chunk_bytes, WARP_SHARE[protocol]), 2), WORKERS // 32)


def ring(protocol: str, ranks: int, nbytes: int, channels: int) -> Plan:
    """Cuts a call round the ring.

    Args:
        protocol, ranks: of the ring.
        nbytes: of one rank's tensor.
        channels: number of channels.
    """
    count = divided(nbytes, ELEMENT_BYTES)
    part = divided(count * ELEMENT_BYTES, ranks)
    return Plan(
        *("all_reduce", protocol, ranks, count, ELEMENT_BYTES),
        workers=WORKERS,
        channels=min(channels, divided(part, CHANNEL_SHARE[protocol])),
        slots=SLOTS,
        slot_bytes=SLOT_BYTES[protocol],
    )


def direct(algorithm: str, ranks: int, nbytes: int, channels: int) -> Cut:
    """Cuts a call by ``one_shot`` or ``two_shot`` over LL; arguments as for :func:`ring`."""
    count = divided(nbytes, ELEMENT_BYTES)
    channels = min(channels, divided(count * ELEMENT_BYTES, CHANNEL_SHARE["ll"]))
    room = MESH_BYTES - COUNTER_BYTES * (3 + ranks - 1)
    wire = 4 * GRAIN_BYTES  # two halves of whole grains, in lines of twice their data
    data = room // (MESH_SLOTS * (ranks - 1)) // wire * wire // 2
    parts = 1
    if algorithm == "two_shot":
        parts, data = ranks, ranks * (data // 2)
    grain = GRAIN_BYTES // ELEMENT_BYTES
    most = data // (GRAIN_BYTES * parts) * parts * grain
    rounds = divided(count, most * channels)
    part = divided(divided(count, rounds * channels * parts), grain) * grain
    return Cut(channels, divided(count, part * parts * channels), part * parts, part)
