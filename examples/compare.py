"""Common parts of the examples: digits, a network, and one training with two backends, compared.

`compare(train)` starts ranks with the environment that torchrun gives them and calls
`train(backend)` in each, first with "ringkern" and then with "gloo". `train` makes the process
group, destroys it, and returns its losses. They are printed next to each other and must be equal:
to the last bit with two ranks, as a + b is b + a; with more, the backends add floats in different
orders, and `tolerance` is how far the losses may be apart. --help says what an example takes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed.nn.functional  # before there is a process group
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

# Two traps of torch 2.13, both of Gloo:
# - The functions of torch.distributed.nn.functional keep, as a default argument, the group that
#   there is when they are imported, as DistributedDataParallel and the first optimizer do. It then
#   outlives destroy_process_group(), and its threads may abort the process as that exits. Hence the
#   import above.
# - A DistributedDataParallel that outlives destroy_process_group() destroys the group with Python's
#   lock held, and waits for a thread that may wait for that lock. Hence the trainings in functions
#   of their own, which `train` calls.

Losses = dict[str, list[float]]  # of one rank: what was done, and its losses


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Handwritten digits, 8 x 8 pixels: 1280 to train on, and 517 others."""
    data = load_digits()
    pixels = data.data.astype("float32") / 16
    parts = train_test_split(pixels, data.target, train_size=1280, random_state=0)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
    return TensorDataset(train_x, train_y), TensorDataset(test_x, test_y)


def network() -> nn.Sequential:
    """The same weights on every rank and with every backend."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def arguments(ranks: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-n", "--ranks", type=int, default=ranks, help=f"default {ranks}")
    parser.add_argument("--backends", nargs=2, default=["ringkern", "gloo"], metavar="NAME")
    parser.add_argument("--timeout", type=float, default=60, help="of each run, in s (default 60)")
    return parser.parse_args()


def free_port() -> int:
    """A port that is free, and not one of those that the kernel may give to somebody meanwhile."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("localhost", port))
            return port


def as_rank(limit_s: float) -> None:
    """Prepares one of several processes: a hang ends with a traceback, and the cores are shared."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    torch.set_num_threads(1)


def _rank(rank: int, train: Callable[[str], Losses], backend: str, limit: float, out: Any) -> None:
    for stop in (signal.SIGINT, signal.SIGTERM):  # Python's handlers do not run in a wait of C++
        signal.signal(stop, signal.SIG_DFL)
    as_rank(limit)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    out.put((rank, train(backend)))


def run(train: Callable[[str], Losses], backend: str, args: argparse.Namespace) -> list[Losses]:
    """The losses of each rank."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
    os.environ.update(WORLD_SIZE=str(args.ranks))
    # Forked ranks have torch, and what DistributedDataParallel imports of it: most of the time of
    # so short a training.
    importlib.import_module("torch._dynamo")
    out = mp.get_context("fork").SimpleQueue()
    job = (train, backend, args.timeout, out)
    mp.start_processes(_rank, job, nprocs=args.ranks, start_method="fork")
    losses = dict(out.get() for _ in range(args.ranks))
    return [losses[rank] for rank in range(args.ranks)]


def report(args: argparse.Namespace, runs: list[list[Losses]], tolerance: float) -> int:
    """Prints each loss, the mean of the ranks that have it, with each backend; the exit status."""
    tolerance = tolerance if args.ranks > 2 else 0.0
    print(f"{Path(sys.argv[0]).name}, {args.ranks} ranks")
    print(f"{'':34}" + "".join(f"{backend:>14}" for backend in args.backends))
    differences = []
    for name in dict.fromkeys(name for ranks in runs for losses in ranks for name in losses):
        curves = [[losses.get(name, []) for losses in ranks] for ranks in runs]
        for ours, theirs in zip(*curves, strict=True):  # rank by rank
            differences += [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        means = [map(fmean, zip(*filter(None, ranks), strict=True)) for ranks in curves]
        for step, losses in enumerate(zip(*means), 1):
            print(f"{name:30}{step:4}" + "".join(f"{loss:14.9g}" for loss in losses))
    ok = bool(differences) and all(d <= tolerance for d in differences)  # false for NaN, too
    print(f"largest difference: {max(differences, default=0):.1e} (accepted: {tolerance:g})")
    print("OK" if ok else "FAILED: the losses differ")
    return 0 if ok else 1


def compare(train: Callable[[str], Losses], ranks: int = 2, tolerance: float = 1e-5) -> None:
    args = arguments(ranks)
    sys.exit(report(args, [run(train, backend, args) for backend in args.backends], tolerance))
