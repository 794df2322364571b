"""ringkern.init: ranks started by torchrun, mpiexec or srun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import ringkern
from ringkern import launchers
from tests.torch.test_launchers import free_port, run_by_torchrun

LIMIT_S = 60
JOB = """
import os, sys, time, torch, torch.distributed as dist, ringkern
for _ in range(int(sys.argv[1])):  # a second group meets elsewhere
    ringkern.init()
    x = torch.ones(4) * (1 + dist.get_rank())
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4 and dist.get_world_size() == 2
    time.sleep(0.3 * dist.get_rank())  # the other one makes its second group meanwhile
    dist.destroy_process_group()
print("rank is done, local rank", os.environ.get("LOCAL_RANK"))
"""
NONE = {
    name: ""
    for one in launchers._LAUNCHERS
    for name in (one.rank, one.size, one.local_rank, *one.one_host)
    if name
} | dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"), "")
# Variables of rank 0 of 2, as each launcher sets them on one host.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "1",
}


def rank(variables: dict[str, str], number: int) -> dict[str, str]:
    named = ("_RANK", "RANKID", "PROCID", "LOCALID")
    return {
        name: str(number) if name.endswith(named) else value for name, value in variables.items()
    }


def run(ranks: list[tuple[list[str], dict[str, str]]], folder: Path) -> list[str]:
    """Returns the output of two ranks; ends them in every case."""
    clean = {name: value for name, value in os.environ.items() if name not in NONE}
    clean |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    jobs = [
        subprocess.Popen(command, env=clean | variables, text=True, stdout=subprocess.PIPE)
        for command, variables in ranks
    ]
    try:
        printed = [job.communicate(timeout=LIMIT_S)[0] for job in jobs]
        assert [job.returncode for job in jobs] == [0, 0]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return printed


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text(JOB)
    return file


@pytest.mark.parametrize("variables", [OPEN_MPI, MPICH, SLURM], ids=["openmpi", "mpich", "slurm"])
def test_ranks_of_one_host(variables: dict[str, str], script: Path, tmp_path: Path) -> None:
    """The ranks meet without an address, also if a shell lies between the launcher and a rank."""
    python = [sys.executable, str(script), "2"]
    in_shells = ["sh", "-c", f"sh -c '{' '.join(python)}; exit $?'; exit $?"]
    ranks = [(python, rank(variables, 0)), (in_shells, rank(variables, 1))]
    assert run(ranks, tmp_path) == [f"rank is done, local rank {n}\n" for n in range(2)]
    (folder,) = tmp_path.glob("ringkern-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []


def test_ranks_of_several_hosts(script: Path, tmp_path: Path) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    apart = MPICH | {"MPI_LOCALNRANKS": "1"} | address
    ranks = [([sys.executable, str(script), "1"], rank(apart, number)) for number in range(2)]
    assert len(run(ranks, tmp_path)) == 2
    assert list(tmp_path.glob("ringkern-*")) == []


def test_torchrun(script: Path) -> None:
    run_by_torchrun(script, "1")


def test_mpiexec(script: Path, tmp_path: Path) -> None:
    """Uses any mpiexec on the PATH, such as one of `python -m bench.compare install`."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("there is no mpiexec on the PATH")
    variables = {name: value for name, value in os.environ.items() if name not in NONE}
    variables |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    variables["LD_LIBRARY_PATH"] = str(Path(mpiexec).parents[1] / "lib")
    # Without these, Open MPI refuses root and more ranks than cores.
    variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    done = subprocess.run(
        ["timeout", str(LIMIT_S), mpiexec, "-n", "2", sys.executable, str(script), "2"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 10,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank is done") == 2


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "none of torchrun, mpiexec and srun"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "none of torchrun, mpiexec and srun"),
        ({"RANK": "0"}, "RANK=0, WORLD_SIZE=(not set): set both"),
        ({**OPEN_MPI, "WORLD_SIZE": "2"}, "RANK=(not set), WORLD_SIZE=2: set both"),
        ({"PMI_RANK": "1"}, "PMI_SIZE=(not set)"),
        ({"PMI_SIZE": "1"}, "PMI_RANK=(not set)"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK=x"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK=-1"),
        (MPICH | {"PMI_RANK": "2"}, "counted from 0"),
        (MPICH | {"MPI_LOCALNRANKS": "1"}, "export MASTER_ADDR"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "export MASTER_ADDR"),
        (SLURM | {"SLURM_STEP_NUM_NODES": "2"}, "scontrol show hostnames"),
        (MPICH | {"MASTER_ADDR": "10.0.0.1"}, "no MASTER_PORT"),
        (MPICH | {"MPI_LOCALNRANKS": "1", "MASTER_PORT": "29500"}, "no MASTER_ADDR"),
    ],
)
def test_missing_or_wrong_variables_are_named(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NONE:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as error:  # noqa: PT011  (compared below)
        ringkern.init()
    assert said in str(error.value)


def test_each_group_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(dist, "init_process_group", lambda _, **options: made.append(options))
    monkeypatch.setenv("LOCAL_RANK", "")  # init sets it: removed again at the end
    for name in NONE:
        monkeypatch.delenv(name, raising=False)
    for name, value in rank(SLURM, 1).items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        ringkern.init(timeout=timedelta(seconds=9))
    assert len({options["init_method"] for options in made}) == 2
    for options in made:
        assert options["init_method"].startswith(f"file://{tmp_path}/ringkern-")
        assert (options["rank"], options["world_size"]) == (1, 2)
        assert options["timeout"] == timedelta(seconds=9)
    assert os.environ["LOCAL_RANK"] == "1"


def test_an_argument_that_init_finds_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ringkern\.init finds rank itself"):
        ringkern.init(rank=0)


def test_the_inner_launcher_counts() -> None:
    """Slurm starts the mpiexec of others, and their ranks inherit its variables."""
    found = launchers._find(SLURM | {"SLURM_PROCID": "1"} | MPICH)
    assert found is not None
    assert (found.launcher.rank, found.rank) == ("PMI_RANK", 0)
    assert launchers._find(MPICH | {"RANK": "1", "WORLD_SIZE": "4"}) is None
    assert launchers._address(found, {"MASTER_PORT": "29500"}) == "tcp://127.0.0.1:29500"


def test_a_folder_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / f"ringkern-{os.getuid()}"
    place.mkdir()
    place.chmod(0o755)
    with pytest.raises(ValueError, match="export MASTER_ADDR"):
        launchers._private_folder()
    place.rmdir()
    place.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="export MASTER_ADDR"):
        launchers._private_folder()
    place.unlink()
    assert launchers._private_folder() == place
