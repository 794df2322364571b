"""A rank dies in the middle of a step, the others go on without it, and a new process joins them.

    python examples/going_on.py        # three ranks; rank 1 dies in step 10 of 100

DistributedDataParallel averages gradients over a `ringkern.Communicator` in its hook. The weights
must be those of one process that averages over as many shares of each batch as there were ranks.
"""

import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from compare import arguments, as_rank, digits, network
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ringkern
from ringkern.errors import RingKernError

STEPS, DIES_IN, BATCH = 100, 10, 60
RATE = 0.2
DATA, _ = digits()


def loss_of(model: torch.nn.Module, step: int, rank: int, ranks: int) -> torch.Tensor:
    """The loss of a rank's share of the batch of a step."""
    first = step * BATCH % (len(DATA) - BATCH)
    images, labels = DATA[first : first + BATCH]
    return cross_entropy(model(images[rank::ranks].double()), labels[rank::ranks])


def over(communicator: ringkern.Communicator) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """A hook of DistributedDataParallel that averages over the ranks of a communicator."""

    def average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        communicator.all_reduce(bucket.buffer(), dist.ReduceOp.AVG)
        averaged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        averaged.set_result(bucket.buffer())
        return averaged

    return average


def newest_state(
    communicator: ringkern.Communicator, model: torch.nn.Module, sizes: torch.Tensor
) -> int:
    """Takes the weights of the rank that has done the most steps; returns how many those are.

    In one tensor, so that a rank has the old state or the new one, whoever dies meanwhile.
    """
    done = torch.empty(communicator.size, dtype=torch.int64)
    communicator.all_gather(done, sizes.count_nonzero().reshape(1))
    state = torch.cat([parameters_to_vector(model.parameters()).detach(), sizes])
    communicator.broadcast(state, int(done.argmax()))
    vector_to_parameters(state[: -len(sizes)], model.parameters())
    sizes.copy_(state[-len(sizes) :])
    return int(done.max())


def train(store: dist.Store, rank: int | None, ranks: int, out: Path) -> None:
    """Trains as one of the first ranks, or, if `rank` is None, as one that joins them."""
    # Its own group, of one rank: the gradients take another way.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sizes = torch.zeros(STEPS, dtype=torch.float64)  # the ranks in each step that is done
    if rank is None:
        communicator = ringkern.Communicator.join(store)
    else:
        communicator = ringkern.Communicator.from_store(store, rank, ranks)
    parallel = None
    while True:
        try:
            if parallel is None:  # the ranks are other ones than before
                step = newest_state(communicator, model, sizes)
                parallel = DistributedDataParallel(model)
                parallel.register_comm_hook(None, over(communicator))
            if step == STEPS:
                break
            waiting = torch.tensor(ringkern.Communicator.waiting(store))
            communicator.broadcast(waiting, 0)  # all ranks must know the same
            if waiting > 0:
                communicator, parallel = communicator.grow(store, int(waiting)), None
                continue
            loss = loss_of(parallel, step, communicator.rank, communicator.size)
            if (rank, step) == (1, DIES_IN):
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            sizes[step] = communicator.size
            step += 1
            time.sleep(0.02)  # for a computation
        except RingKernError:
            optimizer.zero_grad()
            communicator, parallel = communicator.shrink(), None
    torch.save((parameters_to_vector(model.parameters()).detach(), sizes), out)
    communicator.close()
    dist.destroy_process_group()


def alone(sizes: list[int]) -> torch.Tensor:
    """The weights of one process that averages over as many shares of each batch."""
    model = network().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step, ranks in enumerate(sizes):
        for rank in range(ranks):
            (loss_of(model, step, rank, ranks) / ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters_to_vector(model.parameters()).detach()


def process(folder: str, rank: int | None, ranks: int, limit_s: float, name: object) -> None:
    as_rank(limit_s)
    train(dist.FileStore(f"{folder}/store", ranks), rank, ranks, Path(folder, f"result{name}"))


def main() -> int:
    args = arguments(ranks=3)
    importlib.import_module("torch._dynamo")  # once, and not by each process
    fork = mp.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:

        def start(rank: int | None) -> mp.Process:
            new = fork.Process(target=process, args=(folder, rank, args.ranks, args.timeout, rank))
            new.start()
            return new

        first = [start(rank) for rank in range(args.ranks)]
        first[1].join()  # until it dies
        time.sleep(1)  # the others do some steps without it
        last = start(None)
        for each in [*first, last]:
            each.join()
        ends = [each.exitcode for each in [*first, last]]
        print(f"{args.ranks} ranks and a new one have ended with {ends}")
        if ends != [0 if rank != 1 else -signal.SIGKILL for rank in range(args.ranks)] + [0]:
            return 1
        alive = [0, *range(2, args.ranks), None]
        results = [torch.load(f"{folder}/result{rank}") for rank in alive]
    sizes = [int(size) for size in results[0][1]]
    print(f"ranks in each step: {''.join(map(str, sizes))}")
    expected = alone(sizes)
    apart = max(float((weights - expected).abs().max()) for weights, _ in results)
    print(f"largest difference from the weights of one process: {apart:.1e} (accepted: 1e-12)")
    ok = apart <= 1e-12 and {args.ranks - 1, args.ranks} == set(sizes) and sizes[-1] == args.ranks
    print("OK" if ok else "FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
