"""The ring: memory after each step, chunks in transit, and verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from docs.drawing.run import Event, held, play
from docs.drawing.svg import RANKS, Picture
from ringkern._C import Plan

PER_CHUNK = 4  # elements; as many as it takes for no chunk to be empty


def all_reduce() -> Plan:
    """Returns an all-reduce of four ranks: one loop, one chunk for each rank."""
    return Plan("all_reduce", "simple", RANKS, RANKS * PER_CHUNK, 4)


def broadcast() -> Plan:
    """Returns a broadcast of four ranks from rank 1: three loops."""
    chunk = Plan("broadcast", "simple", RANKS, 1, 4).chunk
    return Plan("broadcast", "simple", RANKS, 3 * chunk, 4, root=1)


# ---- memory of each rank ------------------------------------------------------------------------

_CELL, _TENSOR, _PITCH, _ROW, _LEFT, _TOP = 32, 4 * 36, 228, 54, 116, 74


def holdings() -> Picture:
    """Draws rows for the start and each step, and columns for the ranks' tensors of four chunks.

    Chunks in transit during a step are between the rows."""
    plan = all_reduce()
    events = play(plan)
    steps = 1 + max(e.when for e in events)
    picture = Picture(
        _LEFT + RANKS * _PITCH,
        _TOP + (steps + 1) * _ROW + 40,
        "Ring all-reduce of four ranks: what each rank holds before and after each step",
    )
    for rank in range(RANKS):
        x = _LEFT + rank * _PITCH
        picture.text(x + _TENSOR // 2, 22, f"rank {rank}", "bold")
        for chunk in range(RANKS):
            picture.text(x + chunk * 36 + 16, 46, str(chunk), "soft small")
        picture.text(x + (_TENSOR + _PITCH) // 2, 46, "sends", "soft small")
    picture.text(16, 46, "chunk", "soft small", anchor="start")
    for after in range(steps + 1):
        _held_row(picture, events, after, _TOP + after * _ROW, steps)
    y = _TOP + (steps + 1) * _ROW + 8
    picture.text(16, y, "a column for each rank whose numbers are in it:", "small", anchor="start")
    picture.shares(320, y - 10, 32, 20, (1,))
    picture.text(360, y, "rank 1's alone", "small", anchor="start")
    picture.shares(480, y - 10, 32, 20, (1, 2))
    picture.text(520, y, "ranks 1 + 2", "small", anchor="start")
    picture.shares(620, y - 10, 32, 20, (0, 1, 2, 3))
    picture.text(660, y, "complete", "small", anchor="start")
    return picture


def _held_row(picture: Picture, events: Sequence[Event], after: int, y: int, steps: int) -> None:
    tensors = held(events, RANKS, RANKS, after)
    half = RANKS - 1
    name = "before" if after == 0 else f"step {after - 1}"
    picture.text(16, y + 12, name, "bold" if after == 0 else "", anchor="start")
    if after == half + 1:
        picture.line([(16, y - 14), (_LEFT + RANKS * _PITCH - 16, y - 14)])
    kind = {1: "scatter-reduce", half + 1: "all-gather"}.get(after)
    if kind:
        picture.text(16, y + 27, kind, "soft small", anchor="start")
    for rank, tensor in enumerate(tensors):
        x = _LEFT + rank * _PITCH
        for chunk, ranks in enumerate(tensor):
            picture.shares(x + chunk * 36, y, _CELL, 26, ranks)
    for e in events:
        if e.when == after - 1 and e.sends:
            x = _LEFT + e.rank * _PITCH + _TENSOR + 2
            picture.arrow([(x, y + 13), (x + 76, y + 13)], "faint")
            picture.shares(x + 20, y, _CELL, 26, e.ranks, str(e.chunk))


# ---- the ring at each step ----------------------------------------------------------------------


def ring() -> Picture:
    """Draws the four ranks in a ring at each step, with the chunks between them."""
    events = play(all_reduce())
    steps = 1 + max(e.when for e in events)
    sending = [[e for e in events if e.when == when and e.sends] for when in range(steps)]
    shown = [step for step in sending if step]
    columns = RANKS - 1
    picture = Picture(
        columns * 250 + 20,
        -(-len(shown) // columns) * 240 + 4,
        "Ring all-reduce of four ranks: which chunk is on its way between whom in each step",
    )
    for when, messages in enumerate(shown):
        x, y = 10 + when % columns * 250, 40 + when // columns * 240
        if when % columns == 0:
            name = "scatter-reduce" if when == 0 else "all-gather"
            picture.text(x + 14, y - 18, name, "bold", anchor="start")
        _one_ring(picture, x, y, f"step {when}", messages)
    return picture


def _one_ring(picture: Picture, x: int, y: int, name: str, messages: Sequence[Event]) -> None:
    corners = [(x + 40, y + 34), (x + 190, y + 34), (x + 190, y + 166), (x + 40, y + 166)]
    places = [(x + 95, y + 21), (x + 170, y + 87), (x + 95, y + 153), (x + 20, y + 87)]
    picture.text(x + 115, y + 100, name, "bold")
    for e in messages:
        (x0, y0), (x1, y1) = corners[e.rank], corners[(e.rank + 1) % RANKS]
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        picture.arrow([(x0 + 22 * dx, y0 + 22 * dy), (x1 - 22 * dx, y1 - 22 * dy)], "faint")
        picture.shares(*places[e.rank], 40, 26, e.ranks, f"{e.chunk}")
    for rank, (cx, cy) in enumerate(corners):
        picture.box(cx - 20, cy - 20, 40, 40, f"r{rank}", round=20)
        picture.text(cx, cy, str(rank), "bold")


# ---- steps and ranks ----------------------------------------------------------------------------

_WIDE, _HIGH, _GAP = 106, 80, 26


def space_time(plan: Plan, title: str, label: Callable[[Event], str]) -> Picture:
    """Draws columns for steps, rows for ranks, verbs in cells, and arrows for data."""
    events = play(plan)
    steps = 1 + max(e.when for e in events)
    first = events[0].rank  # a chain begins at its root
    order = [plan.rank_at((plan.position(first) + p) % plan.ranks) for p in range(plan.ranks)]
    picture = Picture(72 + steps * (_WIDE + _GAP), 38 + len(order) * (_HIGH + _GAP), title)

    def corner(rank: int, when: int) -> tuple[int, int]:
        return 74 + when * (_WIDE + _GAP), 44 + order.index(rank) * (_HIGH + _GAP)

    for when in range(steps):
        picture.text(corner(order[0], when)[0] + _WIDE // 2, 20, f"step {when}", "soft")
    for rank in order:
        picture.text(16, corner(rank, 0)[1] + _HIGH // 2, f"rank {rank}", "bold", anchor="start")
    _data_arrows(picture, events, corner)
    for e in events:
        x, y = corner(e.rank, e.when)
        picture.box(x, y, _WIDE, _HIGH, f"r{e.chunk % RANKS}", round=5)
        words = e.verb.split("_")
        rows = ["_".join(words[:2]) + "_", "_".join(words[2:])] if len(words) > 2 else [e.verb]
        for i, row in enumerate(rows):
            picture.text(x + _WIDE // 2, y + 15 + 15 * i, row, "mono small bold")
        picture.text(x + _WIDE // 2, y + _HIGH - 29, label(e), "small")
        picture.text(x + _WIDE // 2, y + _HIGH - 13, "+".join(map(str, e.ranks)), "small")
    return picture


def _data_arrows(
    picture: Picture, events: Sequence[Event], corner: Callable[[int, int], tuple[int, int]]
) -> None:
    """Draws arrows from each verb that sends to the next rank's verb that receives."""
    taken = {(e.source, e.chunk, tuple(r for r in e.ranks if r != e.rank)): e for e in events}
    whole = {(e.source, e.chunk, e.ranks): e for e in events}
    for e in events:
        if not e.sends:
            continue
        to = whole.get((e.rank, e.chunk, e.ranks)) or taken[(e.rank, e.chunk, e.ranks)]
        (x0, y0), (x1, y1) = corner(e.rank, e.when), corner(to.rank, to.when)
        look = "arrow" if y1 > y0 else "faint"
        picture.arrow([(x0 + _WIDE, y0 + _HIGH // 2), (x1, y1 + _HIGH // 2)], look)


def all_reduce_steps() -> Picture:
    title = "Ring all-reduce of four ranks: the verb of each rank in each step, and where data goes"
    return space_time(all_reduce(), title, lambda e: f"chunk {e.chunk}")


def broadcast_steps() -> Picture:
    title = "Broadcast from rank 1 to three others, in three loops: a pipelined chain"
    return space_time(broadcast(), title, lambda e: f"loop {e.chunk}")
