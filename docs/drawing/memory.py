"""Memory: the cut of a tensor, a segment, lines, and waits."""

from __future__ import annotations

from docs.drawing.svg import RANKS, Picture
from ringkern import _C
from ringkern._C import Plan


def amount(size: int) -> str:
    """Returns a size such as "64 KiB" or "512 B"."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % (unit // 4) == 0:
            return f"{size / unit:g} {name}"
    return f"{size:,} B"


# ---- chunks and slices --------------------------------------------------------------------------

BYTES, CHANNELS, COUNT = 4, 2, 600_000  # float32
_LEFT, _WIDTH = 130, 760  # of a bar


def cut_plan() -> Plan:
    """Returns the picture's plan: a CPU's slots, but two channels, where a CPU has one."""
    return Plan("all_reduce", "simple", RANKS, COUNT, BYTES, channels=CHANNELS)


def cut() -> Picture:
    """Draws a tensor in loops, the first and last loop in chunks, and a chunk in slices."""
    plan = cut_plan()
    picture = Picture(_LEFT + _WIDTH + 30, 372, "How a tensor is cut in loops, chunks and slices")
    span = CHANNELS * RANKS * plan.chunk
    _row(picture, 24, "tensor", f"{COUNT:,} float32")
    for loop in range(plan.loops):
        first, end = (min(COUNT, at * span) * _WIDTH // COUNT + _LEFT for at in (loop, loop + 1))
        picture.box(first, 24, end - first, 36, "plain")
        picture.text((first + end) // 2, 42, f"loop {loop}")
    _open(picture, 60, 96, _LEFT, _LEFT + span * _WIDTH // COUNT, _LEFT + _WIDTH)
    _loop(picture, 96, plan, 0)
    first_chunk = _LEFT + plan.chunk * _WIDTH // span
    _open(picture, 140, 176, _LEFT, first_chunk, _LEFT + 600)
    _slices(picture, plan)
    _loop(picture, 292, plan, plan.loops - 1)
    words = (
        "The last loop has what is left, so its chunks are shorter. It is drawn as wide as loop 0."
    )
    picture.text(_LEFT, 354, words, "soft small", anchor="start")
    return picture


def _open(picture: Picture, top: int, bottom: int, left: int, right: int, wide: int) -> None:
    """Draws the lines that enlarge the part from `left` to `right` below."""
    picture.dashes([(left, top), (left, bottom)], "faint")
    picture.dashes([(right, top), (wide, bottom)], "faint")


def _loop(picture: Picture, y: int, plan: Plan, loop: int) -> None:
    first = loop * CHANNELS * RANKS * plan.chunk
    total = min(COUNT, first + CHANNELS * RANKS * plan.chunk) - first
    _row(picture, y, f"loop {loop}", f"chunks of {plan.chunk_of(0, loop, 0)[2]:,}")
    for channel in range(CHANNELS):
        for owner in range(RANKS):
            place, _, count = plan.chunk_of(channel, loop, owner)
            x = _LEFT + (place - first) * _WIDTH // total
            end = _LEFT + (place + count - first) * _WIDTH // total
            picture.box(x, y, end - x, 44, f"r{owner}")
            picture.text((x + end) // 2, y + 14, f"chunk {owner}", "bold")
            picture.text((x + end) // 2, y + 31, f"channel {channel}", "small")


def _row(picture: Picture, y: int, name: str, size: str) -> None:
    picture.text(16, y + 12, name, "bold", anchor="start")
    picture.text(16, y + 29, size, "soft small", anchor="start")


def _slices(picture: Picture, plan: Plan) -> None:
    _row(picture, 176, "a chunk", "in slices (Simple)")
    for i, (first, count) in enumerate(plan.slices(plan.chunk)):
        x, end = (_LEFT + 600 * at // plan.chunk for at in (first, first + count))
        picture.box(x, 176, end - x, 40, "r0")
        size = f"{count:,} = {amount(count * BYTES)}"
        picture.text((x + end) // 2, 196, f"slice {i}: {size}, one slot")
    words = "A slice is published on its own: the next rank begins while the other slice is moved."
    picture.text(_LEFT, 232, words, "soft small", anchor="start")


# ---- the FIFO of two neighbours -----------------------------------------------------------------


def fifo() -> Picture:
    """Draws the memory of two neighbours, its writers, and the full slots."""
    parts = {name: size for name, _, size in _C.cpu_segment()}
    slots = parts["FIFO of simple"] // parts["slot of simple"]
    sent, received = 13, 10
    picture = Picture(880, 320, "The FIFO between two neighbours on the ring, and its counters")
    picture.box(20, 44, 256, 240, "plain", round=8)
    picture.text(148, 26, "rank r's own memory", "bold")
    picture.box(330, 44, 530, 240, "plain", round=8)
    picture.text(595, 26, "own memory of rank r + 1, which is r's next", "bold")
    _counter(picture, 40, 70, "sent", sent, "steps that r has filled")
    _counter(picture, 40, 206, "head", received, "steps that next has read")
    for slot in range(slots):
        x = 350 + slot * 62
        step = next((s for s in range(received, sent) if s % slots == slot), None)
        picture.box(x, 70, 56, 46, "empty" if step is None else "r0")
        picture.text(x + 28, 86, "free" if step is None else "full", "small bold")
        picture.text(x + 28, 102, "" if step is None else f"step {step}", "small")
        picture.text(x + 28, 130, f"slot {slot}", "soft small")
    _counter(picture, 350, 150, "tail", sent, "steps that r has published")
    _counter(picture, 350, 206, "received", received, "steps that r + 1 has read")
    picture.arrow([(276, 93), (330, 93)])
    picture.text(303, 80, "data", "small")
    picture.arrow([(276, 168), (330, 168)])
    picture.text(303, 155, "tail", "small")
    picture.arrow([(330, 224), (276, 224)])
    picture.text(303, 211, "head", "small")
    limit = received + slots
    picture.text(
        20,
        304,
        f"slot of a step = step mod {slots}. Rank r may fill slots until sent = head + "
        f"{slots} = {limit}; rank r + 1 may read until received = tail = {sent}.",
        "small",
        anchor="start",
    )
    return picture


def _counter(picture: Picture, x: int, y: int, name: str, value: int, meaning: str) -> None:
    picture.box(x, y, 46, 30, "empty")
    picture.text(x + 23, y + 15, str(value), "mono bold")
    picture.text(x + 54, y + 8, name, "mono bold small", anchor="start")
    picture.text(x + 54, y + 23, meaning, "soft small", anchor="start")


# ---- a rank's segment ---------------------------------------------------------------------------

# The writers of each part, beside its owner.
WRITERS = {
    "bell": "whoever wakes this rank, or ends its waits",
    "counters of": "tail: prev; head: next; sent and received: this rank",
    "FIFO of": "prev",
    "board": "this rank; all others read it",
    "staged lines": "this rank; all others read it (one_shot over LL)",
    "staged chunks": "this rank; by two_shot the others give results back here",
}


def segment() -> Picture:
    """Draws a rank's segment on a CPU, from its first byte to its last."""
    rows: list[tuple[int, str, int, str, int]] = []  # offset, name, bytes, fill, slots
    parts = _C.cpu_segment()
    for name, at, size in parts:
        kind, _, of = name.partition(" of ")
        if kind in ("head", "sent", "received"):
            continue
        if kind == "slot":
            offset, whole, bytes_, fill, _ = rows[-1]
            rows[-1] = (offset, whole, bytes_, fill, bytes_ // size)
        elif kind == "tail":
            counters = [p for p in parts if p[0].endswith(f" of {of}") and p[2] == size]
            rows.append((at, f"counters of {of}", sum(p[2] for p in counters), "r1", 0))
        else:
            fill = "r0" if kind == "FIFO" else "r2" if kind.startswith("staged") else "plain"
            rows.append((at, name, size, fill, 0))
    picture = Picture(900, 66 + len(rows) * 40, "A rank's segment on a CPU")
    for x, head in ((16, "offset"), (110, "part"), (430, "size"), (560, "written by")):
        picture.text(x, 22, head, "soft small", anchor="start")
    for i, (at, name, size, fill, slots) in enumerate(rows):
        _part(picture, 40 + i * 40, at, name, size, fill, slots)
    end = parts[-2][1] + parts[-2][2]
    picture.text(16, 46 + len(rows) * 40, f"{end:,}", "mono small", anchor="start")
    picture.text(110, 46 + len(rows) * 40, "end", "soft small", anchor="start")
    return picture


def _part(picture: Picture, y: int, at: int, name: str, size: int, fill: str, slots: int) -> None:
    picture.text(16, y + 12, f"{at:,}", "mono small", anchor="start")
    picture.box(110, y, 300, 32, fill)
    for slot in range(1, slots):
        x = 110 + slot * 300 // slots
        picture.line([(x, y), (x, y + 32)], "edge")
    picture.text(260, y + 16, _titled(name), "bold")
    each = f"{slots} slots of {amount(size // slots)}" if slots else amount(size)
    picture.text(430, y + 16, each, "small", anchor="start")
    writer = next(who for part, who in WRITERS.items() if name.startswith(part))
    picture.text(560, y + 16, writer, "small", anchor="start")


def _titled(name: str) -> str:
    for protocol, title in (("simple", "Simple"), ("ll128", "LL128"), ("ll", "LL")):
        if name.endswith(f" {protocol}"):
            return name.removesuffix(protocol) + title
    return name


# ---- lines --------------------------------------------------------------------------------------

STEP = 5  # in which the line of the picture was written


def flag_places(protocol: str) -> list[int]:
    """Returns the bytes of a line that belong to a flag.

    Bytes of the data are below 0x80, those of the step above."""
    line = _C.cpu_line(protocol, 0xF1F2F3F4F5F6F7F8 if protocol == "ll128" else 0xF5F6F7F8)
    return [i for i, byte in enumerate(line) if byte >= 0x80]


def lines() -> Picture:
    """Draws a line of LL and one of LL128, byte by byte."""
    picture = Picture(860, 412, "A line of LL and a line of LL128, byte by byte")
    _line(picture, 40, "ll", "LL", "half 0: one 64-bit word", "half 1: one 64-bit word")
    _line(picture, 158, "ll128", "LL128", "data", "")
    picture.box(610, 60, 28, 22, "r0")
    picture.text(650, 71, "data, here 00 01 02 ...", "small", anchor="start")
    picture.box(610, 92, 28, 22, "flag")
    picture.text(650, 103, f"flag of step {STEP}: {STEP + 1}", "small", anchor="start")
    return picture


def _line(picture: Picture, y: int, protocol: str, name: str, *words: str) -> None:
    line, flags = _C.cpu_line(protocol, STEP), flag_places(protocol)
    data = len(line) - len(flags)
    picture.text(
        16, y - 16, f"{name}: {data} bytes of data in a line of {len(line)}", "bold", anchor="start"
    )
    for i, byte in enumerate(line):
        x, row = 70 + i % 16 * 32, i // 16
        picture.box(x, y + row * 30, 32, 26, "flag" if i in flags else "r0")
        picture.text(x + 16, y + 13 + row * 30, f"{byte:02x}", "mono small")
        if i % 16 == 0:
            picture.text(58, y + 13 + row * 30, str(i), "soft small", anchor="end")
    if protocol == "ll":
        for half, word in enumerate(words):
            x = 70 + half * 256
            picture.line(
                [(x + 2, y + 32), (x + 2, y + 38), (x + 254, y + 38), (x + 254, y + 32)], "faint"
            )
            picture.text(x + 128, y + 52, f"{word}, stored whole", "soft small")


# ---- waits --------------------------------------------------------------------------------------


def waits() -> Picture:
    """Draws a step between two neighbours, by each protocol."""
    picture = Picture(940, 392, "A step between two neighbours by Simple, LL and LL128")
    sizes = {name: len(_C.cpu_line(name.lower(), 0)) for name in ("LL", "LL128")}
    for column, name in enumerate(("Simple", "LL", "LL128")):
        x = 10 + column * 310
        sender, receiver = x + 40, x + 180
        counted = name not in sizes
        what = (
            "a slice, and then a counter"
            if counted
            else f"lines of {sizes[name]} bytes with a flag"
        )
        picture.text(x + 110, 22, name, "bold")
        picture.text(x + 110, 42, what, "soft small")
        picture.text(sender, 68, "rank r", "small bold")
        picture.text(receiver, 68, "r + 1", "small bold")
        for lane in (sender, receiver):
            picture.dashes([(lane, 80), (lane, 358)], "faint")
        if counted:
            _slice(picture, sender, receiver)
        else:
            _lines_of_a_step(picture, sender, receiver)
        picture.arrow([(receiver, 258), (sender, 284)], "faint")
        picture.text(receiver + 8, 258, "gives the slot back:", "small", anchor="start")
        picture.text(receiver + 8, 273, "head", "small mono bold", anchor="start")
        picture.text(sender + 8, 300, "may fill the slot again", "small", anchor="start")
        journeys = "two journeys" if counted else "one journey"
        picture.text(x + 110, 374, f"{journeys} before data is used", "small bold")
    return picture


def _slice(picture: Picture, sender: int, receiver: int) -> None:
    for i in range(3):
        picture.arrow([(sender, 92 + i * 20), (receiver, 118 + i * 20)], "faint")
    picture.text(sender + 8, 84, "writes the slot", "small", anchor="start")
    picture.arrow([(sender, 176), (receiver, 202)])
    picture.text(sender + 8, 168, "then tail", "small bold", anchor="start")
    picture.text(receiver + 8, 118, "polls", "small", anchor="start")
    picture.text(receiver + 8, 133, "tail", "small mono bold", anchor="start")
    picture.text(receiver + 8, 202, "sees tail:", "small", anchor="start")
    picture.text(receiver + 8, 217, "reads the slot", "small", anchor="start")


def _lines_of_a_step(picture: Picture, sender: int, receiver: int) -> None:
    picture.text(sender + 8, 84, "writes line by line", "small", anchor="start")
    for i in range(4):
        picture.arrow([(sender, 92 + i * 30), (receiver, 118 + i * 30)])
        words = "reads line 0," if i == 0 else "and the last" if i == 3 else f"line {i},"
        picture.text(receiver + 8, 118 + i * 30, words, "small", anchor="start")
    picture.text(receiver + 8, 92, "polls line 0", "small", anchor="start")
