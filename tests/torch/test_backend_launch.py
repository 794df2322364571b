"""Programs that use the backend in the way users start them, with and without `import ringkern`;
and their ends, with and without destroying the group.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.comm.exits import REPORT
from tests.torch.test_backend_input import check_that_it_works
from tests.torch.test_launchers import LIMIT_S, init, run_by_torchrun, spawn

pytestmark = pytest.mark.slow


def program(
    directory: Path, text: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs outside of the sources, so that the installed package is imported."""
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=directory,
        env={**os.environ, **environment},
        check=False,
    )


# ---- ways to connect ----------------------------------------------------------------------------


def _one_job_after_another(rank: int, size: int, methods: list[str]) -> None:
    torch.set_num_threads(1)
    for method in methods:
        init("ringkern", rank, size, method)
        assert dist.get_backend() == "ringkern"
        group = dist.group.WORLD
        assert group is not None
        check_that_it_works(rank, size, group)
        dist.destroy_process_group()


def test_spawn(tmp_path: Path) -> None:
    spawn(_one_job_after_another, 3, tmp_path)


SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("ringkern")
assert dist.get_backend() == "ringkern"
x = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
assert torch.equal(x, torch.full((1000,), 3.0))
y = torch.zeros(2)
dist.all_to_all_single(y, torch.full((2,), float(dist.get_rank())))
assert y.tolist() == [0.0, 1.0]
objects = [None, None]
dist.all_gather_object(objects, dist.get_rank())
assert objects == [0, 1]
dist.barrier()
if sys.argv[1:] != ["no end"]:
    dist.destroy_process_group()
print("rank is done")
"""


@pytest.mark.parametrize("arguments", [[], ["no end"]], ids=["destroyed", "not destroyed"])
def test_torchrun(tmp_path: Path, arguments: list[str]) -> None:
    """Imports nothing of ringkern. A rank may forget to destroy the group."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    run_by_torchrun(script, *arguments)


# ---- with and without the import ----------------------------------------------------------------

ONE_RANK = """
import sys, torch, torch.distributed as dist
imports = sys.argv[1:] == ["import"]
if imports:
    import ringkern
assert ("ringkern" in sys.modules) == imports, "torch alone must not import it"
dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
assert "ringkern" in sys.modules
x = torch.ones(3)
dist.all_reduce(x)
print(dist.get_backend(), x.tolist())
"""
WORKS = "ringkern [1.0, 1.0, 1.0]\n"


def test_without_an_import(tmp_path: Path) -> None:
    """torch finds the backend by the package's entry point."""
    ended = program(tmp_path, ONE_RANK)
    assert ended.stdout == WORKS, ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


def test_with_the_import(tmp_path: Path) -> None:
    ended = program(tmp_path, ONE_RANK, "import", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.stdout == WORKS, ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


def test_without_autoload(tmp_path: Path) -> None:
    ended = program(tmp_path, ONE_RANK, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert ended.returncode == 1
    assert "Unknown backend type ringkern" in ended.stderr.splitlines()[-1]


def test_import_torch_survives_what_is_wrong_with_ringkern(tmp_path: Path) -> None:
    """The entry point imports nothing of ringkern before a group is made."""
    package = tmp_path / "ringkern"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('broken on purpose')")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = program(tmp_path, "import torch; print(torch.ones(1).item())", PYTHONPATH=paths)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.0\n", "")
    ended = program(tmp_path, ONE_RANK, PYTHONPATH=paths)
    assert ended.stderr.splitlines()[-1] == "ImportError: broken on purpose"


def test_registered_once() -> None:
    ringkern.backend.ringkern_autoload.register()
    assert dist.Backend.backend_list.count("ringkern") == 1
    for device, default in dist.Backend.default_device_backend_map.items():
        assert default != "ringkern", f"ringkern has become the default backend of {device}"


# ---- the end of a program -----------------------------------------------------------------------

ENDS = {
    "in order": "",
    "with calls that nobody waits for": """
works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(20)]
works += [dist.isend(torch.ones(100_000), 1 - rank), dist.irecv(torch.ones(100_000), 1 - rank)]
""",
    "by sys.exit": "sys.exit(3)",
    "with a call that the other misses": """
if rank == 0:
    work = dist.all_reduce(torch.ones(3), async_op=True)
""",
    "with a message that nobody sends": """
if rank == 0:
    work = dist.irecv(torch.ones(3), 1)
""",
    "with a message that nobody receives": """
if rank == 0:
    work = dist.isend(torch.ones(4_000_000), 1)
""",
    "with a thread that waits": """
import threading, time
def call():
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError:
        pass
if rank == 0:
    threading.Thread(target=call, daemon=True).start()
    time.sleep(0.2)
""",
    "with a callback": """
work = dist.all_reduce(torch.ones(3), async_op=True)
work.get_future().then(lambda f: f.value()[0].sum().item())
""",
    "with a child that was forked": """
child = os.fork()
if child == 0:
    said = []
    for call in (dist.all_reduce, lambda x: dist.isend(x, 1 - rank)):
        try:
            call(torch.ones(3))
        except RuntimeError as error:
            said.append("forked" in str(error))
    sys.exit(0 if said == [True, True] else 1)
assert os.waitpid(child, 0)[1] == 0
dist.all_reduce(torch.ones(3))
dist.all_to_all_single(torch.ones(2), torch.ones(2))
""",
    "with a group that is not the default": """
other = dist.new_group(backend="ringkern")
dist.all_reduce(torch.ones(3), group=other)
dist.send(torch.ones(3), 1, other) if rank == 0 else dist.recv(torch.ones(3), 0, other)
""",
}
# One process for each rank imports torch, and forks a child for each end, which ends like a
# program. Two ends run at a time: with more ranks than cores, a rank may warn that it waits for one
# without a core.
ENDINGS = """
import gc, json, os, sys, torch, torch.distributed as dist
gc.freeze()  # as in tests/comm/exits.py
rank, directory, ends = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
children, codes = {}, {}

def reap(most):
    while len(children) > most:
        end = next(iter(children))
        codes[end] = os.waitstatus_to_exitcode(os.waitpid(children.pop(end), 0)[1])

for end in ends:
    reap(1)
    child = os.fork()
    if child == 0:
        break
    children[end] = child
else:
    reap(0)
    print(json.dumps(codes))
    sys.exit()
os.dup2(os.open(f"{directory}/{end} {rank}", os.O_WRONLY | os.O_CREAT), 2)
init = f"file://{directory}/{end} store"
dist.init_process_group("ringkern", init_method=init, rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
dist.all_to_all_single(torch.ones(2), torch.ones(2))
exec(ends[end])
# A rank that ends before the other has made its call would make that call fail.
store = dist.distributed_c10d._get_default_store()
store.set(f"made/{rank}", "")
store.wait([f"made/{1 - rank}"])
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, str]]]:
    """Returns for each end and rank the exit code and stderr."""
    directory = tmp_path_factory.mktemp("ends")
    # Since 3.12, Python warns of a fork in a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENDINGS]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(directory), json.dumps(ENDS)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        for rank in range(2)
    ]
    try:
        codes = [json.loads(process.communicate(timeout=LIMIT_S)[0]) for process in ranks]
    finally:
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {
        end: [(codes[r][end], (directory / f"{end} {r}").read_text()) for r in range(2)]
        for end in ENDS
    }


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_does_not_destroy_its_group(
    ended: dict[str, list[tuple[int, str]]], end: str
) -> None:
    """No crash, no hang, and no stderr except a report of the call that the other rank misses."""
    code = 3 if end == "by sys.exit" else 0
    assert [status for status, _ in ended[end]] == [code, code]
    for _, said in ended[end]:
        lines = [line for line in said.splitlines() if not REPORT.match(line)]
        assert lines == [], said
        assert not said or "misses" in end or "waits" in end, said
