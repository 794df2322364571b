"""A training whose weights are the same, bit by bit, on any number of ranks.

    python examples/same_weights.py                       # 100 steps on 1, 2, 3, 4 and 8 ranks
    python examples/same_weights.py --dtype bfloat16 --steps 1000

A step averages the gradients of 8 shards of a batch, whatever the number of ranks is, over
`ringkern.ddp.world_invariant_hook`. At last a rank of four is killed in the middle, and three go on
from a checkpoint. Prints a digest of weights and losses for each run; exits with 1 if two differ.
"""

import argparse
import hashlib
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from compare import as_rank, digits, network
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import ringkern

SHARDS, BATCH = 8, 64
DATA, _ = digits()


def loss_of(model: torch.nn.Module, step: int, shard: int, dtype: torch.dtype) -> torch.Tensor:
    """The loss of a shard of the batch of a step. Nothing in it depends on the ranks."""
    torch.manual_seed(step * SHARDS + shard)  # for the dropout
    first = step * BATCH % (len(DATA) - BATCH)
    images, labels = DATA[first : first + BATCH]
    outputs = model(images[shard::SHARDS].to(dtype)).float()
    return cross_entropy(outputs, labels[shard::SHARDS])


def train(rank: int, args: argparse.Namespace, folder: Path, dies_in: int) -> None:
    """Trains from the checkpoint in `folder`, if there is one; rank 1 dies in step `dies_in`."""
    model = torch.nn.Sequential(torch.nn.Dropout(0.1), *network()).to(args.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        weights, state, losses = torch.load(checkpoint)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    parallel = DistributedDataParallel(model)
    mine = ringkern.ddp.world_invariant_hook(parallel, SHARDS)
    mean_loss = ringkern.ShardSum(SHARDS)
    for step in range(len(losses), args.steps):
        if (rank, step) == (1, dies_in):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        for shard in mine:
            loss = loss_of(parallel, step, shard, args.dtype)
            loss.backward()
            mean_loss.add(loss)
        optimizer.step()
        losses.append(mean_loss.all_reduce(dist.ReduceOp.AVG).item())
        if rank == 0 and len(losses) % 10 == 0:
            torch.save((model.state_dict(), optimizer.state_dict(), losses), f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)  # never half of a file
    weights = parameters_to_vector(model.parameters()).detach().float()
    (folder / f"digest{rank}").write_text(digest(weights, torch.tensor(losses)))


def digest(*tensors: torch.Tensor) -> str:
    data = torch.cat([tensor.double() for tensor in tensors])  # exact
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def start(rank: int, ranks: int, args: argparse.Namespace, folder: Path, dies_in: int) -> None:
    as_rank(args.timeout)  # one thread: with others, torch may add in another order
    store = dist.FileStore(f"{folder}/store{ranks}", ranks)
    dist.init_process_group("ringkern", store=store, rank=rank, world_size=ranks)
    try:
        train(rank, args, folder, dies_in)
    except ringkern.errors.PeerLostError as error:
        sys.exit(f"rank {rank} ends: {str(error).partition(' during')[0]}")
    dist.destroy_process_group()


def run(ranks: int, args: argparse.Namespace, folder: Path, dies_in: int = -1) -> list[str]:
    """Returns the digest of each rank that does not die."""
    fork = mp.get_context("fork")
    work = [(rank, ranks, args, folder, dies_in) for rank in range(ranks)]
    processes = [fork.Process(target=start, args=each) for each in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [file.read_text() for file in sorted(folder.glob("digest*"))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--timeout", type=float, default=120, help="of each run, in s")
    args = parser.parse_args()
    args.dtype = getattr(torch, args.dtype)
    importlib.import_module("torch._dynamo")  # once, and not by each process
    found = set()
    for ranks in (1, 2, 3, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            digests = run(ranks, args, Path(folder))
        print(f"{ranks} ranks: {' '.join(sorted({each[:16] for each in digests}))}", flush=True)
        found |= set(digests) if len(digests) == ranks else {"a rank has failed"}
    with tempfile.TemporaryDirectory() as folder:
        left = run(4, args, Path(folder), dies_in=args.steps // 2 + 5)
        digests = run(3, args, Path(folder))
    print(f"4 ranks, then 3: {' '.join(sorted({each[:16] for each in digests}))}")
    found |= set(digests) if (len(left), len(digests)) == (0, 3) else {"a rank has failed"}
    print("OK" if len(found) == 1 else "FAILED: the weights differ")
    return 0 if len(found) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
