"""Checks an installed ringkern: two ranks, every form of the call.

    python tests/build/smoke.py     prints one line, or ends with the fault

Each wheel is tried with it: pyproject.toml, [tool.cibuildwheel].
"""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

import ringkern
from ringkern import local

RANKS = 2
SOURCES = Path(__file__).resolve().parents[2]


def expect(tensor: torch.Tensor, value: float, what: str) -> None:
    wanted = torch.full_like(tensor, value)
    if not torch.equal(tensor, wanted):
        raise SystemExit(f"{what} gave {tensor[:3].tolist()}..., not {value}")


def rank_main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "ringkern",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    for count in (1, 1000, 1_000_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for protocol in ("auto", "simple", "ll", "ll128"):
                tensor = torch.full((count,), rank + 1, dtype=dtype)
                ringkern.ring_all_reduce(tensor, protocol=protocol)
                expect(tensor, 3, f"ring_all_reduce of {count} {dtype} by {protocol}")
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor)
    expect(tensor, 3, "dist.all_reduce")
    dist.destroy_process_group()


def main() -> None:
    package = Path(ringkern.__file__).resolve().parent
    if package == SOURCES / "ringkern":
        raise SystemExit(f"{package} is the checkout, not an installation")
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(rank_main, (f"{directory}/store",), RANKS)
    tensors = [torch.full((1000,), rank + 1.0) for rank in range(RANKS)]
    local.ring_all_reduce(tensors)
    expect(tensors[1], 3, "local.ring_all_reduce")
    print(
        f"ringkern {ringkern.__version__} in {package}: {RANKS} ranks agree, "
        f"Python {sys.version.split()[0]}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
