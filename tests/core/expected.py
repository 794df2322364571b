"""The expected outcome of a schedule: the contributors of each chunk, the senders, and the ranks
with an output.
"""

from __future__ import annotations

import itertools

from ringkern._C import Plan
from tests.core.simulator import Ring, Run, Span

CHAINS = ("broadcast", "reduce", "send_recv")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", *CHAINS)


def make_ring(plan: Plan, collective: str, count: int, slots: int, channel: int = 0) -> Ring:
    ranks = range(plan.ranks)
    return Ring(
        [plan.trace(rank, channel) for rank in ranks],
        [plan.next(rank, channel) for rank in ranks],
        collective,
        count,
        slots,
    )


def contributors(
    collective: str, plan: Plan, owner: int, root: int, channel: int = 0
) -> tuple[int, ...]:
    """Returns the contributors to the chunk of a position, in order: the ranks after it, and it
    last.

    On a chain, chunks belong to the root.
    """
    k = plan.ranks
    if collective in ("broadcast", "send_recv"):
        return (root,)
    if collective == "all_gather":
        return (plan.rank_at(owner, channel),)
    last = plan.position(root, channel) if collective == "reduce" else owner
    return tuple(plan.rank_at((last + 1 + hop) % k, channel) for hop in range(k))


def writers(collective: str, plan: Plan, root: int) -> set[int]:
    """Returns the ranks that have an output."""
    only = {"reduce": {root}, "send_recv": {plan.next(root)}}
    return only.get(collective, set(range(plan.ranks)))


def senders(collective: str, plan: Plan, root: int, channel: int) -> set[int]:
    """Returns the ranks that use the link to the next one."""
    everyone = set(range(plan.ranks))
    only = {"broadcast": everyone - {plan.prev(root, channel)}, "reduce": everyone - {root}}
    return (only | {"send_recv": {root}}).get(collective, everyone)


def owners(collective: str, plan: Plan) -> range:
    """Returns the owners of a loop's chunks; a chain has one."""
    return range(1 if collective in CHAINS else plan.ranks)


def expected_output(collective: str, plan: Plan, rank: int, root: int) -> list[Span]:
    """Returns the spans that an output must hold at the end, by the chunk table; no empty ones."""
    if rank not in writers(collective, plan, root):
        return []
    spans = []
    for channel, loop in itertools.product(range(plan.channels), range(plan.loops)):
        mine = [plan.position(rank, channel)]
        for owner in mine if collective == "reduce_scatter" else owners(collective, plan):
            _, out, count = plan.chunk_of(channel, loop, owner)
            if count:
                ranks = contributors(collective, plan, owner, root, channel)
                spans.append(Span(out, count, ranks))
    return sorted(spans)


def check_complete(spans: list[Span], length: int) -> None:
    """Spans lie end to end from 0 to `length`: each element once."""
    at = 0
    for span in spans:
        assert span.first == at, f"element {at} is missing or twice"
        at += span.count
    assert at == length


def check_run(collective: str, count: int, plan: Plan, runs: list[Run], root: int = 0) -> None:
    """`runs`: one of each channel."""
    k = plan.ranks
    for rank in range(k):
        everything = [s for run in runs for s in run.outputs[rank]]
        if rank in writers(collective, plan, root):
            spans = sorted(s for s in everything if s.count)
            check_complete(spans, count * k if collective == "all_gather" else count)
            assert spans == expected_output(collective, plan, rank, root)
        else:
            assert everything == [], "not even an empty chunk"
    for channel, run in enumerate(runs):
        assert set(run.sent) == (senders(collective, plan, root, channel) if count else set())
    chunks = sum(
        plan.chunk_of(channel, loop, owner)[2] > 0
        for channel in range(plan.channels)
        for loop in range(plan.loops)
        for owner in owners(collective, plan)
    )
    reduced = [n for run in runs for n in run.reduced.values()]
    copied = [n for run in runs for n in run.copied.values()]
    reduces = collective in ("all_reduce", "reduce_scatter", "reduce")
    copies = {"reduce_scatter": 0, "reduce": 0, "send_recv": 1}.get(collective, k - 1)
    assert reduced == [k - 1] * (chunks if reduces else 0)
    assert copied == [copies] * (chunks if copies else 0)
