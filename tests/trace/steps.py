"""The expected display of the page at a step, from the plan and TraceLink alone."""

from __future__ import annotations

from typing import Any

import pytest

from ringkern._C import Plan
from tests.core.expected import contributors
from tests.trace.browser import Shown


def schedule(ranks: int, orders: Any = ()) -> Plan:
    """Returns a plan of one loop whose chunks are all whole, so that an offset identifies the
    chunk's owner.
    """
    channels = max(1, len(orders))
    given: dict[str, Any] = {"channels": channels, "orders": orders}
    chunk = Plan("all_reduce", "simple", ranks, 1, 4, **given).chunk
    return Plan("all_reduce", "simple", ranks, ranks * channels * chunk, 4, **given)


def expected(plan: Plan, channel: int, step: int) -> tuple[list[Any], list[Any]]:
    """Returns the action and data of each rank, and the data in flight, from the plan and TraceLink
    alone.
    """
    k = plan.ranks
    owner_at = {plan.chunk_of(channel, 0, owner)[0]: owner for owner in range(k)}
    sums = {owner: contributors("all_reduce", plan, owner, 0, channel) for owner in range(k)}
    ranks, tokens = [], []
    for position in range(k):
        rank = plan.rank_at(position, channel)
        verbs = [(row[0], owner_at[row[1]]) for row in plan.trace(rank, channel)]
        held: dict[int, tuple[int, ...]] = dict.fromkeys(range(k), (rank,))
        for verb, owner in verbs[: step + 1]:
            if "copy" in verb or verb == "recv":
                held[owner] = sums[owner]
        verb, owner = verbs[step]
        ranks.append((rank, verb, owner, [held[chunk] for chunk in range(k)]))
        if verb.endswith("send"):
            sent = sums[owner][: min(step + 1, k)]
            tokens.append((rank, plan.next(rank, channel), owner, sent))
    return ranks, tokens


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def check_step(shown: Shown, plan: Plan, channel: int, step: int) -> None:
    state = shown.state()
    ranks, tokens = expected(plan, channel, step)
    found = [
        (int(r["rank"]), r["verb"], int(r["owner"]), [numbers(b["sum"]) for b in r["blocks"]])
        for r in state["ranks"]
    ]
    assert found == ranks
    assert [
        (int(t["from"]), int(t["to"]), int(t["chunk"]), numbers(t["sum"])) for t in state["tokens"]
    ] == tokens
    for rank in state["ranks"]:
        assert rank["name"] == f"rank {rank['rank']}"
        assert rank["text"] == rank["verb"]
        busy = [block["chunk"] for block in rank["blocks"] if block["busy"]]
        assert busy == [rank["owner"]]
    drawn = [block for rank in state["ranks"] for block in rank["blocks"]]
    for block in drawn + [token["block"] for token in state["tokens"]]:
        have = len(numbers(block["sum"]))
        assert block["filled"] == pytest.approx(have / plan.ranks, abs=0.02)
        assert ("complete" in block["title"]) == (have == plan.ranks)
    assert state["slider"] == step
    assert state["phase"].startswith(f"Step {step}, of 0 to {2 * plan.ranks - 2}: ")
