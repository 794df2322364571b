"""One clock out of several: GPUs have a timer each, and these run apart with time."""

from __future__ import annotations

import itertools
from dataclasses import replace

from .events import Trace


def align(trace: Trace) -> Trace:
    """The trace with each rank's times shifted so that the links of a ring are equally fast.

    On each link there is a chunk that took less than all others, from the start of the verb that
    sent it to the end of the one that received it. With clocks that differ it took more or less
    than that; round the whole ring the differences cancel, and the rest is the time of all those
    chunks together. Each link is given an equal part of it, so that nothing is received before it
    is sent. Times of one rank are exact, and those of two ranks as exact as their links are alike.
    """
    fastest: dict[int, int] = {}  # of what a rank sends, on the ring of channel 0
    for sent, received in trace.hops():
        if sent.channel == 0 and trace.waits_for(received):
            took = received.end_ns - sent.start_ns
            fastest[sent.rank] = min(took, fastest.get(sent.rank, took))
    if len(fastest) < trace.ranks:
        return trace  # some rank sends nothing but empty chunks
    order = trace.orders[0]
    mean = sum(fastest.values()) // trace.ranks
    shift = {order[0]: 0}
    for rank, following in itertools.pairwise(order):
        shift[following] = shift[rank] + mean - fastest[rank]
    first = min(event.start_ns + shift[event.rank] for event in trace.events)
    events = (
        replace(
            event,
            start_ns=event.start_ns + shift[event.rank] - first,
            end_ns=event.end_ns + shift[event.rank] - first,
        )
        for event in trace.events
    )
    return replace(trace, events=tuple(sorted(events, key=lambda event: event.start_ns)))
