"""The coordinator: gives every contender the turn, size after size, and collects its times."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ringkern.tools.launch import free_memory
from ringkern.tools.turns import Block, Turns, block_seconds, repeats, slowest, usual_placement

from . import memory
from .contender import Contender, ContenderError
from .field import Field
from .rows import LIMIT, RINGKERN, Entrant, Row, has_limit

# Bytes up to which the limit is measured.
CHUNKS = (4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)
LONGEST_IN_LINES = 256 << 10  # above that, flags in lines are far from being the best
# Threads of OpenMP poll after a call, up to some 15 ms, on cores that the next contender uses, too.
SETTLE_S = 0.03
MEMORY_SHARE = 0.25  # of the free memory, for the tensors of all contenders


def run(field: Field) -> Iterator[Row]:
    """Measures one size after the other.

    Raises:
        TimeoutError: there is no time left for the next one.
    """
    settings = field.settings
    itemsize = memory.ITEMSIZE[settings.dtype]
    # More than one small size may be rounded to one element.
    for count in dict.fromkeys(max(1, size // itemsize) for size in settings.sizes):
        if time.monotonic() > field.end:
            raise TimeoutError(f"not through after {settings.timeout_s:g} s")
        yield _Size(field, count * itemsize, count).measure()


class _Size:
    """The contest over one size."""

    def __init__(self, field: Field, size: int, count: int) -> None:
        self._field, self._settings = field, field.settings
        self._size, self._count = size, count
        tensors = memory.span(size, self._settings.rotate) * self._settings.ranks
        # The limit has tensors in shared memory, too. Where all together would be too much, a
        # contender has its tensors in its turns only.
        together = tensors * (len(field.contenders) + 1)
        self._resident = together < MEMORY_SHARE * free_memory()
        self._turns: dict[Entrant, Turns] = {}

    def measure(self) -> Row:
        field, settings = self._field, self._settings
        for contender in field.contenders:
            self._attempt(contender.name, self._enter, contender)
        block_s = block_seconds(settings.seconds, len(self._turns))
        self._each(self._calibrate, block_s)
        self._choose_chunks()
        if settings.check:
            self._each(self._check)
        self._repeat(repeats(settings.seconds, block_s, self._turns.values()))
        choice = tuple(self._choice())
        for contender in field.contenders:
            self._attempt(contender.name, field.ask, contender.name, "release")
        blocks = [block for turns in self._turns.values() for block in turns.blocks]
        placement = usual_placement(blocks) if blocks else "unknown"
        results = {entrant: turns.result(placement) for entrant, turns in self._turns.items()}
        return Row(self._size, self._count, placement, results, choice)

    def _attempt(self, name: str, act: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Does something with a contender. One that fails is ended, and its times do not count."""
        try:
            act(*args, **kwargs)
        except ContenderError as error:
            self._field.lose(name, error)
        self._forget_lost()

    def _forget_lost(self) -> None:
        alive = {contender.name for contender in self._field.contenders}
        self._turns = {e: turns for e, turns in self._turns.items() if e.contender in alive}

    def _each(self, act: Callable[..., object], *args: Any) -> None:
        for entrant in list(self._turns):
            if entrant in self._turns:  # still
                self._attempt(entrant.contender, self._with_memory, entrant, act, *args)

    def _with_memory(self, entrant: Entrant, act: Callable[..., object], *args: Any) -> None:
        if self._resident:
            act(entrant, *args)
            return
        self._prepare(entrant.contender)
        act(entrant, *args)
        self._field.ask(entrant.contender, "release")

    def _prepare(self, name: str) -> None:
        rotate, dtype = self._settings.rotate, self._settings.dtype
        self._field.ask(name, "prepare", size=self._size, rotate=rotate, dtype=dtype)

    def _enter(self, contender: Contender) -> None:
        modes = [mode for mode in self._settings.modes if mode in contender.modes]
        if contender.name == LIMIT:
            modes = limit_modes(contender.modes, self._size) if has_limit(self._settings) else []
        if self._resident and modes:
            self._prepare(contender.name)
        for entrant in (Entrant(contender.name, mode) for mode in modes):
            time = functools.partial(self._time, entrant)
            self._turns[entrant] = Turns(time, self._settings.warmup)

    def _calibrate(self, entrant: Entrant, block_s: float) -> None:
        self._turns[entrant].calibrate(block_s)

    def _choose_chunks(self) -> None:
        """Keeps the fastest chunk of each movement of the limit."""
        best: dict[str, Entrant] = {}
        for entrant, turns in self._turns.items():
            if entrant.contender == LIMIT:
                movement = entrant.mode.split("/")[0]
                other = best.setdefault(movement, entrant)
                if turns.seconds < self._turns[other].seconds:
                    best[movement] = entrant
        kept = best.values()
        self._turns = {e: t for e, t in self._turns.items() if e.contender != LIMIT or e in kept}

    def _check(self, entrant: Entrant) -> None:
        if entrant.contender == LIMIT and self._settings.threads > 1:
            return  # a copy sums nothing
        answers = self._field.ask(entrant.contender, "check", mode=entrant.mode)
        self._turns[entrant].wrong = sum(answer["wrong"] for answer in answers)

    def _repeat(self, number: int) -> None:
        order = list(self._turns)
        before = self._field.probe()
        for _ in range(number):
            for entrant in order:
                if entrant not in self._turns:
                    continue
                self._attempt(entrant.contender, self._with_memory, entrant, self._turn)
                after = self._field.probe()
                self._forget_lost()
                if entrant in self._turns and before is not None and after is not None:
                    blocks = self._turns[entrant].blocks
                    blocks[-1] = replace(blocks[-1], round_trips=(before, after))
                before = after
            order.reverse()  # nobody is always the first

    def _turn(self, entrant: Entrant) -> None:
        if self._settings.threads > 1:
            time.sleep(SETTLE_S)
        self._turns[entrant].take()

    def _time(self, entrant: Entrant, warmup: int, calls: int) -> Block:
        asked = {"mode": entrant.mode, "warmup": warmup, "calls": calls}
        answers = self._field.ask(entrant.contender, "time", **asked)
        times = slowest([answer["times"] for answer in answers])
        return Block(times, max(answer["preempted"] for answer in answers))

    def _choice(self) -> list[str]:
        if RINGKERN not in {contender.name for contender in self._field.contenders}:
            return []
        asked = {"size": self._size, "dtype": self._settings.dtype}
        found: list[str] = self._field.ask(RINGKERN, "choice", **asked)[0]["choice"]
        return found


def limit_modes(movements: tuple[str, ...], size: int) -> list[str]:
    """The movements that can be tried with a size, each with its chunks."""
    modes = []
    for movement in movements:
        if movement in ("one_shot", "scatter_gather", "scatter_gather_c"):
            # Up to one that holds all of it.
            chunks = [chunk for chunk in CHUNKS if chunk < 2 * size] or [CHUNKS[0]]
            modes += [f"{movement}/{chunk}" for chunk in chunks]
        elif movement != "flag_in_line" or size <= LONGEST_IN_LINES:
            modes.append(f"{movement}/{CHUNKS[0]}")
    return modes
