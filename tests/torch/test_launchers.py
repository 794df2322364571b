"""Programs started like users start them: spawn, torchrun, and each init_method."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ringkern
from tests.torch.test_api import summed, values

pytestmark = pytest.mark.slow

LIMIT_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def init(backend: str, rank: int, size: int, method: str) -> None:
    """Calls init_process_group; ``method`` is torch's, but env:// may be followed by a port."""
    if method.startswith("env://"):
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=method.removeprefix("env://"))
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        dist.init_process_group(backend, init_method="env://")
    else:
        dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)


def spawn(job: Callable[[int, int, list[str]], None], size: int, directory: Path) -> None:
    """Runs ``job(rank, size, methods)`` on ranks, which are ended in every case."""
    methods = [
        f"env://{free_port()}",
        f"tcp://localhost:{free_port()}",
        f"file://{directory / 'store'}",
    ]
    context = mp.spawn(job, args=(size, methods), nprocs=size, join=False)
    end = time.monotonic() + LIMIT_S
    try:
        while not context.join(timeout=1):  # raises a rank's exception
            assert time.monotonic() < end, "the ranks have not ended"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()


def run_by_torchrun(script: Path, *arguments: str) -> None:
    """Runs two ranks, each of which reports success, with nothing else on stderr."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with subprocess.Popen(
        [*torchrun, "--nproc-per-node", "2", str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as job:
        try:
            output, errors = job.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            job.terminate()  # ends its ranks, which would outlive a kill
            raise
    assert job.returncode == 0, errors
    assert output.count("rank is done") == 2
    assert errors == ""


def _one_job_after_another(rank: int, size: int, methods: list[str]) -> None:
    torch.set_num_threads(1)
    for method in methods:
        init("gloo", rank, size, method)
        x = values(rank)
        ringkern.ring_all_reduce(x)
        assert torch.equal(x, summed(size)), method
        work = ringkern.ring_all_reduce(values(rank), async_op=True)
        assert work is not None
        work.wait()
        dist.destroy_process_group()


def test_spawn(tmp_path: Path) -> None:
    spawn(_one_job_after_another, 2, tmp_path)


SCRIPT = """
import time, torch, torch.distributed as dist, ringkern
dist.init_process_group("gloo")
time.sleep(0.5 * dist.get_rank())  # the other one waits for it at the store
x = torch.arange(1000.0) * (1 + dist.get_rank())
ringkern.ring_all_reduce(x)
assert torch.equal(x, torch.arange(1000.0) * 3)
dist.destroy_process_group()
print("rank is done")
"""


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    run_by_torchrun(script)
