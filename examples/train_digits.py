"""Data-parallel training on handwritten digits, its gradients averaged by the ring and by Gloo.

    python examples/train_digits.py                         # starts 4 ranks by itself
    torchrun --nproc-per-node 4 examples/train_digits.py    # or joins those it is given

Two copies of one network start from the same weights and see the same batches. They train in turn,
an epoch each: one averages its gradients with `ringkern.ring_all_reduce`, the other with
`dist.all_reduce`. The two add the ranks' floats in different orders, so their loss curves must
agree within rounding (2 ranks: bit for bit). Exits with 1 if they do not, or learn too little.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import ringkern

BATCH = 32  # images a rank and step
LOSS_TOLERANCE = 1e-4  # the largest accepted difference of the two loss curves
ACCURACY_WANTED = 0.95


class Run:
    """One of the two copies: a network, its optimizer, one flat buffer of gradients, a record."""

    def __init__(self, all_reduce: Callable[[Tensor], object]) -> None:
        torch.manual_seed(0)  # the same weights on every rank and in both copies
        self.model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.all_reduce = all_reduce
        self.seconds, self.calls = 0.0, 0  # in communication
        self.losses: list[float] = []  # an epoch's mean, of this rank's images
        # Gradients are views of one buffer: one collective a step, and nothing to pack.
        parameters = list(self.model.parameters())
        self.gradients = torch.zeros(sum(p.numel() for p in parameters))
        for p, part in zip(parameters, self.gradients.split([p.numel() for p in parameters])):
            p.grad = part.view_as(p)

    def epoch(self, images: Tensor, labels: Tensor, order: Tensor) -> None:
        """Trains on this rank's share of `order`, a permutation of the images."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        steps = len(order) // (BATCH * ranks)
        total = 0.0
        for batch in order[: steps * BATCH * ranks].view(steps, ranks, BATCH)[:, rank]:
            self.gradients.zero_()
            loss = nn.functional.cross_entropy(self.model(images[batch]), labels[batch])
            loss.backward()
            start = time.perf_counter()
            self.all_reduce(self.gradients)
            self.gradients /= ranks
            self.seconds += time.perf_counter() - start
            self.calls += 1
            self.optimizer.step()
            total += loss.item()
        self.losses.append(total / steps)

    @torch.no_grad()
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        return (self.model(images).argmax(dim=1) == labels).double().mean().item()


def report(runs: dict[str, Run], images: Tensor, labels: Tensor, out: str) -> int:
    """Prints the figures and draws the plot, both on rank 0 alone; returns the exit status."""
    curves = torch.tensor([run.losses for run in runs.values()], dtype=torch.float64)
    dist.all_reduce(curves)
    curves /= dist.get_world_size()
    seconds = torch.tensor([run.seconds for run in runs.values()], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if dist.get_rank() != 0:
        return 0
    figure = Figure(figsize=(9, 4), layout="tight")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set(xlabel="epoch", ylabel="training loss, mean of all ranks", yscale="log")
    right.set(ylabel="s in communication, slowest rank")
    print("training loss\n   epoch" + "".join(f"{name:>12}" for name in runs))
    for epoch, losses in enumerate(curves.T.tolist(), 1):
        print(f"{epoch:8}" + "".join(f"{loss:12.6f}" for loss in losses))
    ok = True
    for (name, run), curve, s, style in zip(runs.items(), curves, seconds.tolist(), ("-", "--")):
        accuracy = run.accuracy(images, labels)
        ok &= accuracy > ACCURACY_WANTED
        print(
            f"{name:>8}: test accuracy {accuracy:.1%}, {s:.3f} s in {run.calls} all-reduces of "
            f"{run.gradients.nbytes} bytes"
        )
        left.plot(range(1, len(curve) + 1), curve, style, label=name)
        right.bar(name, s)
    print("(the slowest rank's time, with its waiting for ranks that still compute)")
    difference = (curves[0] - curves[1]).abs().max().item()
    ok &= difference <= LOSS_TOLERANCE  # false for NaN, too
    print(f"largest difference of the loss curves: {difference:.1e} (accepted: {LOSS_TOLERANCE:g})")
    left.legend()
    figure.suptitle(f"Handwritten digits, {dist.get_world_size()} ranks")
    figure.savefig(out, dpi=120)
    print(f"plot: {out}\n{'OK' if ok else 'FAILED: curves differ, or accuracy is too low'}")
    return 0 if ok else 1


def train(rank: int, ranks: int, init_method: str, args: argparse.Namespace) -> None:
    faulthandler.dump_traceback_later(args.timeout, exit=True)  # a hang ends, and says where
    torch.set_num_threads(1)  # the ranks share the cores
    digits = load_digits()
    pixels = digits.data.astype("float32") / 16
    parts = train_test_split(pixels, digits.target, random_state=0)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in parts)
    # Before there is a group: torch 2.13 keeps one alive that exists when the first optimizer is
    # made, and Gloo's threads, still running, may then abort the process as it exits.
    runs = {"ringkern": Run(ringkern.ring_all_reduce), "gloo": Run(dist.all_reduce)}
    limit = timedelta(seconds=args.timeout)
    dist.init_process_group("gloo", init_method, limit, world_size=ranks, rank=rank)
    try:
        for run in runs.values():  # the ring connects on its first call: not a part of training
            run.all_reduce(run.gradients)
        for epoch in range(args.epochs):
            order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
            turns = list(runs.values())
            for run in turns if epoch % 2 else reversed(turns):  # neither is always the first
                run.epoch(train_x, train_y, order)
        status = report(runs, test_x, test_y, args.out)
    finally:
        dist.destroy_process_group()
    sys.exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, default=4, help="ranks to start (default 4)")
    parser.add_argument("--epochs", type=int, default=20, help="default 20")
    parser.add_argument("--out", default="digits.png", help="the plot (default digits.png)")
    parser.add_argument("--timeout", type=float, default=120, help="for it all, in s (default 120)")
    args = parser.parse_args()
    if "RANK" in os.environ:  # torchrun's
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        try:
            init_method = f"file://{folder}/store"
            # A daemon is ended with this process, if that is interrupted.
            mp.spawn(train, (args.ranks, init_method, args), nprocs=args.ranks, daemon=True)
        except mp.ProcessExitedException as failure:  # the rank has said why
            sys.exit(abs(failure.exit_code))


if __name__ == "__main__":
    main()
