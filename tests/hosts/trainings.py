"""Trainings of examples/ as they are, by ranks on several hosts: for test_training.py, run by
tests.comm.exits. Each rank leaves its losses in ``losses<rank>`` in the folder."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from functools import partial
from pathlib import Path

from tests.comm.exits import ROOT, serve
from tests.hosts.fates import Plan

EXAMPLES = ("ddp", "fsdp2", "deepspeed_zero")


def train(rank: int, size: int, folder: Path) -> None:
    """Runs an example: its name is in the file ``example``, the port of its ranks in ``port``."""
    # Like torchrun; a namespace has an address of its own.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=(folder / "port").read_text())
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    Plan.read(folder).settle(rank)
    name = (folder / "example").read_text()
    example = importlib.import_module(name)
    run = example.train if name == "ddp" else partial(example.train, str(folder))
    (folder / f"losses{rank}").write_text(json.dumps(run("ringkern")))


if __name__ == "__main__":
    sys.path.append(str(ROOT / "examples"))
    # Imported once, and not by each rank, including later imports, such as compare.py of the
    # examples.
    importlib.import_module("torch._dynamo")
    for each in EXAMPLES:
        with contextlib.suppress(ImportError):
            importlib.import_module(each)
    serve(globals())
