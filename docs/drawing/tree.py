"""The tree over shards on several numbers of ranks."""

from __future__ import annotations

from docs.drawing.svg import Picture
from ringkern import _C

SHARDS = 8
Span = tuple[int, int]  # the first shard, and how many


def spans_of(ranks: int) -> tuple[list[list[Span]], list[Span]]:
    """Returns the sums of each rank, shards included, and those of several ranks, by ShardTree."""
    tree = _C.ShardTree(SHARDS)
    by_rank: list[list[Span]] = []
    nodes: list[Span] = []
    for rank in range(ranks):
        first, count = tree.run_of(rank, ranks)
        shards = [(shard, 1) for shard in range(first, first + count)]
        by_rank.append(shards + _sums(shards, tree.sums_of_shards(rank, ranks)))
        nodes += tree.nodes_of(rank, ranks)
    return by_rank, _sums(nodes, tree.sums_of_nodes(ranks))


def _sums(nodes: list[Span], sums_of: list[int]) -> list[Span]:
    found, open_nodes = [], list[Span]()
    for node, sums in zip(nodes, sums_of, strict=True):
        open_nodes.append(node)
        for _ in range(sums):
            right = open_nodes.pop()
            open_nodes[-1] = open_nodes[-1][0], open_nodes[-1][1] + right[1]
            found.append(open_nodes[-1])
    return found


def tree() -> Picture:
    """Draws the sums over eight shards on two, three and four ranks."""
    picture = Picture(944, 196, f"The sums over {SHARDS} shards on two, three and four ranks")
    for panel, ranks in enumerate((2, 3, 4)):
        left = 16 + panel * 312
        picture.text(left, 18, f"{ranks} ranks", "bold", anchor="start")
        by_rank, across = spans_of(ranks)
        for rank, spans in enumerate(by_rank):
            for span in spans:
                _box(picture, left, span, f"r{rank}")
        for span in across:
            _box(picture, left, span, "plain")
    return picture


def _box(picture: Picture, left: int, span: Span, fill: str) -> None:
    first, count = span
    level = (count - 1).bit_length()
    x, y, width = left + first * 36, 148 - level * 38, count * 36 - 4
    picture.box(x, y, width, 30, fill, round=5)
    words = str(first) if count == 1 else f"{first} to {first + count - 1}"
    picture.text(x + width // 2, y + 15, words, "small")
