"""A rank of a small data-parallel training that resumes from its checkpoint, for trainings.py.

tests.comm.exits runs it. Each rank shows its position on a page, a file that all map. A surviving
rank writes its error, or its result: ``said<rank>`` in the folder.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import importlib
import json
import mmap
import os
import random
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ringkern.errors import RingKernError
from tests.comm.exits import serve
from tests.faults.lives import leave_note
from tests.ranks import Named

STEPS, CHECKPOINT_EVERY = 30, 3
# In the order in which a rank reaches them; those of a step are repeated.
PLACES = ("start", "init", "made", "wrap", "load", "forward", "backward", "update")
PLACES += ("checkpoint", "end")
IN_STEP = PLACES[4:9]
EXIT_CODE = 7


@dataclass(frozen=True)
class Life:
    """A run of all ranks, from their start to their end.

    Attributes:
        store: port of the store; another process hosts it, so it outlives each rank.
        name: of this run, in the store.
        hosts: a letter for each rank; empty: all are on one.
        timeout_s: of the group.
        checkpoint: a file, that of the earlier runs.
        exits: the rank that ends by os._exit() when its page says so.
        whole_end: whether ranks end like a whole interpreter, which takes most of the time;
            otherwise they only run the registered exit functions.
    """

    store: int
    name: str
    hosts: str
    timeout_s: float
    checkpoint: str
    exits: int | None = None
    whole_end: bool = True

    def write(self, folder: Path) -> None:
        (folder / "life").write_text(json.dumps(asdict(self)))


class Page:
    """A file in which each rank shows its pid and its position, and reads whether to exit."""

    WORDS = 3

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def make(cls, path: Path, size: int) -> Page:
        path.write_bytes(bytes(8 * cls.WORDS * size))
        return cls(path)

    def get(self, rank: int, word: int) -> int:
        return self._words[self.WORDS * rank + word]

    def set(self, rank: int, word: int, value: int) -> None:
        self._words[self.WORDS * rank + word] = value


PID, PLACE, EXIT = range(Page.WORDS)


def moment(place: str, step: int = 0) -> int:
    """Returns a number that grows during a run; ``step`` counts from 1 in each."""
    return (STEPS + 1 if place == "end" else step) * len(PLACES) + PLACES.index(place)


def place_of(moment: int) -> str:
    return PLACES[moment % len(PLACES)]


def _exit_when_told(page: Page, rank: int) -> None:
    while not page.get(rank, EXIT):
        time.sleep(0.001)
    os._exit(EXIT_CODE)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))


class Rank:
    """One run of one rank."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.page = Page(folder / "page")
        self.page.set(rank, PID, os.getpid())
        self.life = Life(**json.loads((folder / "life").read_text()))
        self.rank, self.size = rank, size
        self.since = time.monotonic()
        self.draw = random.Random(f"{self.life.name} {rank}")
        if self.life.exits == rank:
            threading.Thread(target=_exit_when_told, args=(self.page, rank), daemon=True).start()

    def at(self, place: str, step: int = 0, longest_s: float = 0) -> None:
        """Shows this rank's position, and stays there for a while."""
        self.since = time.monotonic()
        self.page.set(self.rank, PLACE, moment(place, step))
        if longest_s:
            time.sleep(self.draw.uniform(0, longest_s))

    def train(self) -> str:
        """Returns a digest of the trained model."""
        life = self.life
        self.at("start", longest_s=0.05)
        if life.hosts:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            Named(life.hosts)(self.rank)
        server = dist.TCPStore("127.0.0.1", life.store, None, is_master=False)
        self.at("init")
        dist.init_process_group(
            "ringkern",
            store=dist.PrefixStore(life.name, server),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=life.timeout_s),
        )
        self.at("made", longest_s=0.02)
        bare = network()
        optimizer = torch.optim.SGD(bare.parameters(), lr=0.05, momentum=0.9)
        first = self.load(bare, optimizer)
        self.at("wrap")
        model = DistributedDataParallel(bare, bucket_cap_mb=0.01)
        for step in range(first, STEPS):
            self.step(model, optimizer, step, step - first + 1)
            if (step + 1) % CHECKPOINT_EVERY == 0 and self.rank == 0:
                self.at("checkpoint", step - first + 1)
                self.save(bare, optimizer, step + 1)
        self.at("end")
        dist.barrier()
        dist.destroy_process_group()
        return digest(bare, optimizer)

    def step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        step: int,
        of_life: int,
    ) -> None:
        self.at("load", of_life, longest_s=0.003)
        data = torch.Generator().manual_seed(1000 * step + self.rank)
        x, labels = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
        self.at("forward", of_life)
        loss = cross_entropy(model(x), labels)
        self.at("backward", of_life)
        loss.backward()
        self.at("update", of_life)
        optimizer.step()
        optimizer.zero_grad()

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        new = f"{self.life.checkpoint}.new"
        torch.save((model.state_dict(), optimizer.state_dict(), step), new)
        os.replace(new, self.life.checkpoint)  # never a partial file

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Returns the first step."""
        if not os.path.exists(self.life.checkpoint):
            return 0
        weights, momenta, step = torch.load(self.life.checkpoint)
        model.load_state_dict(weights)
        optimizer.load_state_dict(momenta)
        return int(step)


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Returns a digest of weights and momenta, which are equal on all ranks."""
    kept: list[torch.Tensor] = []
    for parameter in model.parameters():
        kept += [parameter.detach(), optimizer.state[parameter]["momentum_buffer"]]
    return hashlib.sha256(b"".join(x.numpy().tobytes() for x in kept)).hexdigest()[:16]


def train(rank: int, size: int, folder: Path) -> None:
    this = Rank(rank, size, folder)
    said: dict[str, Any] = {}
    try:
        said["digest"] = this.train()
    except RingKernError as error:
        said |= {"kind": type(error).__name__, "rank": error.rank, "text": str(error)}
    said |= {
        "at": time.monotonic(),
        "since": this.since,
        "place": place_of(this.page.get(rank, PLACE)),
    }
    leave_note(folder / f"said{rank}", json.dumps(said))
    if not this.life.whole_end:
        atexit._run_exitfuncs()
        os._exit(0)


if __name__ == "__main__":
    # Imported once, and not by each rank when it makes an optimizer.
    importlib.import_module("torch._dynamo")
    gc.freeze()  # otherwise an ending rank scans all objects, and copies them
    serve(globals())
