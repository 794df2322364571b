"""The parts of ``make gpu``, most valuable first, and how they are divided into runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

PREBUILT_SECONDS = 10.0  # planned for a part that --prebuilt has spared the compiler


@dataclass(frozen=True)
class Part:
    """One part, which runs as a process of its own.

    Attributes:
        name: of the part, and of its result, ``<name>.json``.
        seconds: it is ended after this time; what it has found by then is kept.
        planned: seconds that it is expected to take, by runs on one H100. A run starts a part only
            if this much is left of its budget.
        about: a line for ``--plan``.
        needs: parts that must pass before it in the same run.
        rehearses: it has something to do without a GPU, on the CPU.
        compiles: without a GPU, it can at least compile its programs.
        module: ``bench.gpu.<module>``; "": as ``name``.
        quick: seconds planned for it in a quick run; 0: as ``planned``.
    """

    name: str
    seconds: float
    planned: float
    about: str
    needs: tuple[str, ...] = ()
    rehearses: bool = False
    compiles: bool = False
    module: str = ""
    quick: float = 0.0


CORE, EXTENSION = ("core",), ("core", "extension")
# hello and what it needs are moved to the front where they need no compiler: see `ordered`.
PARTS = (
    Part("machine", 30, 5, "network, headers, compilers: what all others need", (), True),
    Part("limits", 90, 10, "copies, launches, hops", compiles=True),
    Part("ll128_probe", 60, 10, "litmus tests of what the protocols rely on", compiles=True),
    Part("core", 300, 60, "the library without torch, for this GPU alone", (), True),
    Part("extension", 300, 60, "the torch extension on top of it", CORE, True),
    Part("hello", 60, 25, "one ring, one capture, one call of processes", EXTENSION, True),
    Part("ctest", 240, 90, "tests/cuda, against a model of the order", CORE, compiles=True),
    Part("local", 120, 60, "ranks of a process, k = 2..8: all dtypes and ops", EXTENSION, True),
    Part("misaligned", 60, 10, "views that start at every element", EXTENSION, True),
    Part("graph", 90, 60, "1,000 replays with changing inputs", EXTENSION, True),
    Part("ipc", 120, 30, "2 and 4 processes", EXTENSION, True),
    Part(
        "missing_peer", 180, 100, "a rank that never calls: who is named", EXTENSION, True, quick=45
    ),
    Part("backend", 240, 30, 'init_process_group("ringkern"), 2 ranks', EXTENSION, True),
    Part("backend_k4", 240, 40, "the same with 4 ranks", EXTENSION, True, module="backend"),
    Part("sanitizer", 240, 60, "memcheck, synccheck, racecheck", CORE, compiles=True),
    Part("speed", 300, 240, "time and bandwidth of ranks of a process", EXTENSION, True, quick=40),
    Part("tune", 180, 90, "the costs that auto goes by", EXTENSION, quick=40),
    Part("processes", 120, 30, "a rank a process, next to NCCL and symm_mem", EXTENSION, True),
    Part("wrappers", 180, 90, "FSDP, TP, torch.compile", EXTENSION, True, module="backend"),
    Part(
        "one_queue", 120, 60, "backend with one hardware queue", EXTENSION, True, module="backend"
    ),
)


def select(names: str | None) -> tuple[Part, ...]:
    """The parts of a list of names with commas; ``None``: all.

    Raises:
        ValueError: a name is none; the text says what there is.
    """
    if names is None:
        return PARTS
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - {part.name for part in PARTS}
    if unknown or not wanted:
        known = ", ".join(part.name for part in PARTS)
        raise ValueError(f"--parts {names}: choose of {known}")
    return with_needs(tuple(part for part in PARTS if part.name in wanted))


def with_needs(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """These parts and those that they need, in the usual order."""
    names = {part.name for part in parts} | {need for part in parts for need in part.needs}
    return tuple(part for part in PARTS if part.name in names)


def ordered(
    parts: tuple[Part, ...], prebuilt: tuple[str, ...], quick: bool = False
) -> tuple[Part, ...]:
    """The parts with less time for those that are prebuilt, and of a quick run.

    Parts that need no build do not wait for one; if there is none, ``hello`` and what
    it needs come right after ``machine``.
    """
    if quick:
        parts = tuple(dataclasses.replace(p, planned=p.quick or p.planned) for p in parts)
    parts = tuple(
        dataclasses.replace(part, planned=PREBUILT_SECONDS) if part.name in prebuilt else part
        for part in parts
    )
    if not set(EXTENSION) <= set(prebuilt):
        return parts
    order = {name: at for at, name in enumerate(("machine", *EXTENSION, "hello"))}
    return tuple(sorted(parts, key=lambda part: order.get(part.name, len(order))))


def runs(parts: tuple[Part, ...], budget: float) -> list[tuple[Part, ...]]:
    """The parts of each run, if each part takes as long as planned; at least one new part a run.

    A later run repeats what its parts need, because another machine has to build it again.
    """
    divided: list[tuple[Part, ...]] = []
    left = [part.name for part in parts]
    while left:
        needed = {need for part in parts if part.name in left for need in part.needs}
        run: list[Part] = []
        for part in parts:
            if part.name not in needed.union(left):
                continue
            spent = sum(each.planned for each in run)
            if spent + part.planned > budget and any(each.name in left for each in run):
                break
            run.append(part)
        divided.append(tuple(run))
        left = [name for name in left if name not in {part.name for part in run}]
    return divided
