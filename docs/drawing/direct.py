"""All-reduces without a ring: one_shot and two_shot on a CPU."""

from __future__ import annotations

from docs.drawing.svg import RANKS, Picture
from ringkern import _C

ALL = tuple(range(RANKS))


VERBS = ("stage", "reduce", "collect")


def ahead_of(algorithm: str) -> int:
    """Returns by how many iterations a round's verbs follow each other."""
    described = _C.describe("cpu", "all_reduce", algorithm, "simple", RANKS, 1, "float32")
    assert described is not None
    return described["ahead"]


def verbs_of(algorithm: str, rounds: int) -> list[list[tuple[str, int]]]:
    """Returns (verb, round) of each iteration of run_direct (csrc/core/direct.h), in order."""
    largest = _C.describe("cpu", "all_reduce", algorithm, "simple", RANKS, 1 << 24, "float32")
    assert largest is not None
    trace = _C.cpu_direct_trace(algorithm, RANKS, rounds * largest["chunk"], 4)
    iterations: list[list[tuple[str, int]]] = []
    for verb, round_, _, _ in trace:
        iteration = round_ + VERBS.index(verb) * ahead_of(algorithm)
        if iteration == len(iterations):
            iterations.append([])
        iterations[iteration].append((verb, round_))
    return iterations


def exchanges() -> Picture:
    """Draws the tensors and slots of four ranks after each verb of a round."""
    picture = Picture(960, 454, "one_shot and two_shot between four ranks, verb by verb")
    _exchange(picture, 16, "one_shot", "everybody reads all, and adds all")
    _exchange(picture, 206, "two_shot", "each rank adds its part for all")
    return picture


def _exchange(picture: Picture, y: int, algorithm: str, what: str) -> None:
    picture.text(16, y + 6, algorithm, "bold mono", anchor="start")
    picture.text(110, y + 6, what, "soft", anchor="start")
    slots: dict[int, list[tuple[int, ...]]] = {}
    tensors: dict[int, list[tuple[int, ...]]] = {rank: [(rank,)] * RANKS for rank in ALL}
    verbs = [verb for iteration in verbs_of(algorithm, 1) for verb, _ in iteration]
    for row, verb in enumerate(verbs):
        top = y + 40 + row * 62
        _apply(verb, algorithm, tensors, slots)
        picture.text(16, top + 22, verb, "bold mono", anchor="start")
        picture.text(142, top + 11, "tensor", "soft small", anchor="end")
        picture.text(142, top + 37, "slot", "soft small", anchor="end")
        for rank in ALL:
            x = 152 + rank * 204
            if row == 0:
                picture.text(x + 80, top - 16, f"rank {rank}", "small bold")
            for part in range(RANKS):
                picture.shares(x + part * 40, top, 36, 22, tensors[rank][part])
                picture.shares(x + part * 40, top + 26, 36, 22, slots[rank][part])


def _apply(
    verb: str,
    algorithm: str,
    tensors: dict[int, list[tuple[int, ...]]],
    slots: dict[int, list[tuple[int, ...]]],
) -> None:
    """Follows csrc/cpu/mesh_slots.h."""
    for rank in ALL:
        if verb == "stage":
            mine = algorithm == "two_shot"  # nobody reads my own part
            slots[rank] = [() if mine and p == rank else (rank,) for p in ALL]
        if verb == "reduce" and algorithm == "one_shot":
            tensors[rank] = [ALL] * RANKS
        if verb == "reduce" and algorithm == "two_shot":
            tensors[rank][rank] = ALL
            for other in ALL:
                if other != rank:
                    slots[other][rank] = ALL
        if verb == "collect":
            tensors[rank] = [tensors[rank][p] if p == rank else slots[rank][p] for p in ALL]


def rounds() -> Picture:
    """Draws the order in which a rank runs the verbs of five rounds of a two_shot."""
    iterations = verbs_of("two_shot", 5)
    described = _C.describe("cpu", "all_reduce", "two_shot", "simple", RANKS, 1, "float32")
    assert described is not None
    slots = described["slots"]
    picture = Picture(110 + len(iterations) * 104, 216, "The rounds of a two_shot overlap")
    for i, iteration in enumerate(iterations):
        x = 96 + i * 104
        picture.text(x + 46, 20, f"iteration {i}", "soft small")
        for verb, round_ in iteration:
            y = 40 + VERBS.index(verb) * 54
            picture.box(x, y, 92, 44, f"r{round_ % slots}", round=5)
            picture.text(x + 46, y + 14, f"round {round_}", "bold small")
            picture.text(x + 46, y + 30, f"slot {round_ % slots}", "small")
    for row, verb in enumerate(VERBS):
        picture.text(16, 62 + row * 54, verb, "bold mono", anchor="start")
    return picture
