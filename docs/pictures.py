"""The pictures of docs/concepts and docs/design, drawn from what the code does: verbs from
TraceLink (csrc/core/trace.h), cuts from Plan, offsets and bytes from the CPU's segments and lines,
sums from rings of this process.

    python -m docs.pictures            # writes docs/concepts/pictures/*.svg
    python -m docs.pictures --check    # says which of them differ, and exits with 1

Run from the root of a checkout with ringkern built. tests/docs/test_pictures.py compares them, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from docs.drawing import direct, hosts, memory, ring, tree
from docs.drawing.svg import Picture

FOLDER = Path(__file__).parent / "concepts" / "pictures"

PICTURES: dict[str, Callable[[], Picture]] = {
    "ring": ring.ring,
    "holdings": ring.holdings,
    "steps": ring.all_reduce_steps,
    "chain": ring.broadcast_steps,
    "cut": memory.cut,
    "fifo": memory.fifo,
    "segment": memory.segment,
    "lines": memory.lines,
    "waits": memory.waits,
    "direct": direct.exchanges,
    "rounds": direct.rounds,
    "hosts": hosts.hosts,
    "tree": tree.tree,
}


def stale() -> list[str]:
    """Returns the names of outdated pictures, and of files that belong to no picture."""
    drawn = {f"{name}.svg": str(draw()) for name, draw in PICTURES.items()}
    there = {file.name: file.read_text() for file in FOLDER.glob("*.svg")}
    names = drawn.keys() | there.keys()
    return sorted(name for name in names if drawn.get(name) != there.get(name))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if arguments:
        names = stale()
        if names:
            print(f"differ: {', '.join(names)}; draw them with: python -m docs.pictures")
        return 1 if names else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(str(draw()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
