"""The contenders of a run: started, asked, and left out where they fail."""

from __future__ import annotations

import os
import time
from typing import Any

from ringkern.tools import launch

from .catalogue import Configuration
from .contender import Contender, ContenderError, Meeting
from .rows import LIMIT, Settings

LOOK_S, LOOKS = 0.2, 3  # for which idle contenders are watched; the kernel counts in 0.01 s


class Field:
    """All contenders, resident at once. A context manager, which ends them.

    Attributes:
        left_out: why a contender does not take part, or no longer, by name.
        end: when everything must be through, as time.monotonic() has it.
    """

    def __init__(self, settings: Settings, configurations: list[Configuration]) -> None:
        self.settings = settings
        self.left_out: dict[str, str] = {}
        ranks = max(2, settings.ranks)  # the limit's
        self._cores = launch.cores_by_rank(ranks, settings.threads) if settings.pinned else []
        self._meeting = Meeting()
        self._files: list[int] = []
        self._alive: dict[str, Contender] = {}
        self._all: list[Contender] = []
        self.end = time.monotonic() + settings.timeout_s
        for number, configuration in enumerate(configurations):
            folder = self._meeting.folder / str(number)
            # Bare movement is between two, and measures the distance of their cores in any case.
            alone = configuration.name == LIMIT and settings.threads == 1
            ranks = 2 if alone else settings.ranks
            self._all.append(Contender(configuration, ranks, folder, self._cores, settings.threads))

    def __enter__(self) -> Field:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for contender in self._all:
            contender.dismiss()
        for contender in self._all:
            contender.end()
        for file in self._files:
            os.close(file)
        self._meeting.close()

    @property
    def contenders(self) -> list[Contender]:
        """Those that take part, still."""
        return list(self._alive.values())

    def lose(self, name: str, why: ContenderError) -> None:
        """Ends a contender, and goes on without it."""
        self.left_out[name] = str(why)
        self._alive.pop(name).kill()

    def ask(self, name: str, command: str, **arguments: Any) -> list[dict[str, Any]]:
        """Does the same as :meth:`Contender.ask`, within the time of a turn."""
        return self._alive[name].ask(command, self.settings.turn_s, **arguments)

    def probe(self) -> float | None:
        """The round trip between the cores of two ranks, ns; None where nobody measures it."""
        if LIMIT not in self._alive or self.settings.threads > 1:
            return None
        try:
            return float(self.ask(LIMIT, "probe")[0]["round_trip_ns"])
        except ContenderError as error:
            self.lose(LIMIT, error)
            return None

    def _start(self) -> None:
        settings = self.settings
        for contender in self._all:
            files: tuple[int, ...] = ()
            if contender.name == LIMIT:
                files = (os.memfd_create("slots"), os.memfd_create("tensors"))
                self._files += files
            contender.start(self._meeting.address, settings.timeout_s + settings.start_s, files)
        self._alive = {contender.name: contender for contender in self._all}
        for name, why in self._meeting.gather(self._all, settings.start_s).items():
            self.lose(name, ContenderError(why))
        for contender in self.contenders:
            try:
                contender.welcome(settings.start_s)
                if contender.name != LIMIT and settings.dtype not in contender.dtypes:
                    raise ContenderError(f"has no {settings.dtype}")
            except ContenderError as error:
                self.lose(contender.name, error)
        self._end_restless()

    def _end_restless(self) -> None:
        """Nobody may use a core while it is another one's turn."""
        suspects = self.contenders
        for _ in range(LOOKS):  # what has just started may have something to do
            before = {contender.name: contender.busy_s() for contender in suspects}
            time.sleep(LOOK_S)
            suspects = [c for c in suspects if c.busy_s() - before[c.name] > LOOK_S / 4]
        for contender in suspects:
            why = "its ranks do not sleep while it is not their turn"
            self.lose(contender.name, ContenderError(why))
