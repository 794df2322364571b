"""Makes one clock of several: each GPU has its own timer, and they drift apart."""

from __future__ import annotations

import itertools
from dataclasses import replace

from .events import Trace


def align(trace: Trace) -> Trace:
    """Returns the trace with each rank's times shifted so that a ring's links are equally fast.

    On each link, one chunk took less time than all others, from the start of the verb that sent it
    to the end of the verb that received it. If clocks differ, this time is too long or too short.
    Round the whole ring the differences cancel, and the sum is the time of all these chunks
    together. Each link gets an equal part of it, so that nothing is received before it is sent.
    Times of one rank are exact; those of two ranks are as exact as their links are alike.
    """
    fastest: dict[int, int] = {}  # of what a rank sends, on the ring of channel 0
    for sent, received in trace.hops():
        if sent.channel == 0 and trace.waits_for(received):
            took = received.end_ns - sent.start_ns
            fastest[sent.rank] = min(took, fastest.get(sent.rank, took))
    if len(fastest) < trace.ranks:
        return trace  # some rank sends only empty chunks
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
