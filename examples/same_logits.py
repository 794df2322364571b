"""A tensor-parallel transformer whose logits are the same, bit by bit, on 1, 2 and 4 ranks.

    python examples/same_logits.py
    python examples/same_logits.py --dtype bfloat16

Heads and hidden features are divided into 4 shards, whatever the number of ranks is. A rank
computes each of its shards by itself, and `ringkern.functional.world_invariant_linear` adds them.
Prints a digest of the logits and the tokens that they choose; exits with 1 if two runs differ.
"""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from compare import as_rank
from torch import Tensor
from torch.nn.functional import gelu, linear, rms_norm, scaled_dot_product_attention

import ringkern
from ringkern.functional import world_invariant_linear

SHARDS, LAYERS, WIDTH, HEADS, VOCABULARY = 4, 3, 128, 8, 256
NEW_TOKENS = 16


def weight(layer: int, name: str, out: int, features: int) -> Tensor:
    """The same random weight in every process; a program would load it."""
    seed = layer * 10 + ("qkv", "out", "up", "down", "embedding", "head").index(name)
    random = torch.Generator().manual_seed(seed)
    values: Tensor = torch.randn(out, features, generator=random) / features**0.5
    return values


class Layer:
    """A rank's shards of a layer: rows of the weights before the sum, columns of those after it."""

    def __init__(self, layer: int, shards: range, dtype: torch.dtype) -> None:
        def rows(name: str, out: int) -> list[Tensor]:  # by shard
            parts = weight(layer, name, out, WIDTH).to(dtype).chunk(SHARDS)
            return [parts[shard] for shard in shards]

        def columns(name: str, features: int) -> Tensor:  # of all shards of this rank
            parts = weight(layer, name, WIDTH, features).to(dtype).chunk(SHARDS, dim=1)
            return torch.cat([parts[shard] for shard in shards], dim=1)

        self.qkv, self.up = rows("qkv", 3 * WIDTH), rows("up", 4 * WIDTH)
        self.out, self.down = columns("out", WIDTH), columns("down", 4 * WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        normal = rms_norm(x, (WIDTH,))
        heads = torch.cat([attention(linear(normal, each)) for each in self.qkv], dim=-1)
        x = x + world_invariant_linear(heads, self.out, shards=SHARDS)
        normal = rms_norm(x, (WIDTH,))
        hidden = torch.cat([gelu(linear(normal, each)) for each in self.up], dim=-1)
        return x + world_invariant_linear(hidden, self.down, shards=SHARDS)


def attention(qkv: Tensor) -> Tensor:
    """Attends with the heads of one shard; `qkv`: (tokens, 3 * features of the shard)."""
    q, k, v = qkv.view(len(qkv), 3, HEADS // SHARDS, -1).permute(1, 2, 0, 3)
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)


@torch.no_grad()
def generate(dtype: torch.dtype) -> tuple[str, list[int]]:
    """Returns a digest of all logits, and the tokens."""
    shards = ringkern.ShardSum(SHARDS).shards
    layers = [Layer(layer, shards, dtype) for layer in range(LAYERS)]
    embedding, head = (
        weight(0, name, VOCABULARY, WIDTH).to(dtype) for name in ("embedding", "head")
    )
    tokens, digest = [1, 2, 3], hashlib.sha256()
    for _ in range(NEW_TOKENS):
        x = embedding[tokens]
        for layer in layers:
            x = layer(x)
        logits = linear(rms_norm(x[-1:], (WIDTH,)), head)
        digest.update(logits.view(torch.uint8).numpy().tobytes())
        tokens.append(int(logits.argmax()))
    return digest.hexdigest(), tokens[3:]


def start(rank: int, ranks: int, dtype: torch.dtype, folder: str) -> None:
    as_rank(limit_s=60)  # one thread: with others, torch may add in another order
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("ringkern", store=store, rank=rank, world_size=ranks)
    digest, tokens = generate(dtype)
    Path(folder, f"result{rank}").write_text(f"{digest[:16]} tokens {tokens}")
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    dtype = getattr(torch, parser.parse_args().dtype)
    found = set()
    for ranks in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(start, (ranks, dtype, folder), nprocs=ranks, start_method="fork")
            results = {file.read_text() for file in Path(folder).glob("result*")}
        print(f"{ranks} ranks: logits {'; '.join(sorted(results))}", flush=True)
        found |= results
    print("OK" if len(found) == 1 else "FAILED: the logits differ")
    return 0 if len(found) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
