"""The parts of ``make gpu``, in the order in which they run: what is right before what is fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One part, which runs as a process of its own.

    Attributes:
        name: also of its module, ``bench.gpu.<name>``, and of its result, ``<name>.json``.
        seconds: it is ended after so many; what it has found by then is kept.
        about: a line for ``--list``.
        needs: parts without which it cannot run. Where those are not run, it uses what an earlier
            run has left.
        rehearses: it has something to do without a GPU, on the CPU.
    """

    name: str
    seconds: float
    about: str
    needs: tuple[str, ...] = ()
    rehearses: bool = False


PARTS = (
    Part("build", 300, "the extension, for this GPU alone", (), True),
    Part("ctest", 150, "tests/cuda, against a model of the ring's order", ("build",)),
    Part("local", 120, "ranks of a process, k = 2..8: protocols, dtypes, ops", ("build",), True),
    Part("misaligned", 60, "views that start at every element", ("build",), True),
    Part("graph", 90, "captured once, replayed 1,000 times with changing inputs", ("build",)),
    Part("ipc", 120, "2 and 4 processes over CUDA IPC", ("build",), True),
    Part("missing_peer", 120, "a rank that never calls: who is named, and when", ("build",), True),
    Part("backend", 240, 'init_process_group("ringkern"): every call, DDP', ("build",), True),
    Part("ll128_probe", 60, "litmus tests of what LL128, LL and Simple rely on"),
    Part("sanitizer", 180, "compute-sanitizer: memcheck, racecheck, synccheck", ("build",)),
    Part("limits", 90, "copies, launches, hops, and the ring's bytes without its waits"),
    Part("speed", 300, "ranks of a process: time, bandwidth, share of the limit", ("build",), True),
    Part("processes", 120, "a rank a process, next to torch's NCCL and symm_mem", ("build",), True),
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
    return tuple(part for part in PARTS if part.name in wanted)
