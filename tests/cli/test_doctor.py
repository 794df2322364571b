"""``doctor`` as a whole: real limits, what does not load, and real rings that go wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ringkern import local
from ringkern.comm import Communicator
from ringkern.tools.doctor import build, rings, smoke
from ringkern.tools.doctor.check import State
from ringkern.tools.program import main
from tests.cli.test_env import broken_copy
from tests.ranks import Ranks

LIMIT_S = 280
GREEN, YELLOW, RED, UNCHECKED = State.GREEN, State.YELLOW, State.RED, State.UNCHECKED


def doctor(before: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Returns the command's result, in a process that has run ``before``."""
    program = f"import runpy, sys\n{before}\n"
    program += (
        "sys.argv, sys.orig_argv = ['-m', *sys.argv[1:]], ['-m', 'ringkern', *sys.argv[1:]]\n"
    )
    program += "from ringkern.tools import main\nsys.exit(main())\n"
    return subprocess.run(
        [sys.executable, "-c", program, "doctor"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=cwd,
    )


def states(text: str) -> dict[str, str]:
    """Returns the colour of each line, by name."""
    found = {}
    for line in text.splitlines():
        if line[:1] not in (" ", "#"):
            found[line[12:46].strip()] = line[:12].strip()
    return found


# ---- the whole ----------------------------------------------------------------------------------


def test_all_is_well_here() -> None:
    """Where this test runs, rings work: it looks at what the others fake."""
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    found = states(done.stdout)
    assert "red" not in found.values()
    ways = [
        f"ranks: {a}, {p}"
        for a, p in (("ring", "ll128"), ("one_shot", "ll"), ("two_shot", "simple"))
    ]
    names = ["extension", "memory files", "Unix sockets", "store on localhost", *ways]
    names += ["ranks: scatter, gather, simple", "ranks: shared tensors", 'backend "ringkern"']
    for name in [*names, "a message", "one process: ll"]:
        assert found[name] == "green", (name, done.stdout)
    if not torch.cuda.is_available():
        assert found["rings on GPUs"] == "not checked"


def test_the_ranks_of_torchrun() -> None:
    command = "--standalone --nproc-per-node 2 -m ringkern doctor"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    names = [line[12:46].strip() for line in done.stdout.splitlines() if line[:1] != " "]
    assert len(set(names)) == len(names), "one rank prints"
    found = states(done.stdout)
    assert found["extension"] == found["a message"] == found["one process: ll"] == "green"


def failed_in_a_group(rank: int, size: int) -> list[str]:
    tests = [rings.Test(f.__name__, f) for f in (well, wrong, well)]
    return [f"{f.state.value} {f.found}" for f in smoke.joined(tests)]


def test_a_failure_in_a_group_is_told_on_all_ranks(ranks: Callable[[int], Ranks]) -> None:
    expected = [
        "green right on 2 ranks",
        "red rank 1: WrongResult: 3 of 7 elements are wrong",
        "not checked a rank has failed before",
    ]
    assert ranks(2).run(failed_in_a_group) == [expected, expected]


def test_one_rank() -> None:
    tests = [rings.Test("message", rings.message, ("cpu",)), rings.Test("store", rings.store)]
    assert [f.state for f in smoke.run(tests, 1)] == [GREEN, GREEN]


def test_a_broken_extension_is_red_and_the_other_checks_run(tmp_path: Path) -> None:
    done = doctor(cwd=broken_copy(tmp_path))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    found = states(done.stdout)
    assert found["extension"] == "red"
    assert found["rings"] == found["variables"] == "not checked"
    assert found["compiler"] == ("green" if shutil.which("g++") else "red")
    assert found["memory files"] == "green"
    assert f"fix: in its clone: {build.REBUILD}" in done.stdout
    assert ", 1 red, " in done.stdout.splitlines()[-1] or not shutil.which("g++")


def test_real_limits_and_rings_that_fail_are_red() -> None:
    """A file may not be larger than half a MiB, and memory files are files: no ring is made."""
    before = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 19, 1 << 19))\n"
    before += "r.setrlimit(r.RLIMIT_NOFILE, (100, 100))"
    done = doctor(before=before)
    assert done.returncode == 1
    found = states(done.stdout)
    assert found["open files"] == found["memory files"] == "red"
    assert found["address space, file size"] == "red"
    assert found["ranks: ring, simple"] == "red"
    assert "fix: raise the limit, or allow the call, that the error names" in done.stdout
    assert found["a message"] == "not checked"
    assert "Traceback" not in done.stdout + done.stderr


def test_unknown_variables_are_yellow_and_wrong_ones_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RINGKERN_PROTOKOL", "ll")
    assert main(["doctor", "--no-rings"]) == 0
    said = capsys.readouterr().out
    assert states(said)["variables"] == "yellow"
    assert "RINGKERN_PROTOKOL (did you mean RINGKERN_PROTOCOL?)" in said
    monkeypatch.setenv("RINGKERN_TIMEOUT", "soon")
    assert main(["doctor", "--no-rings"]) == 1
    said = capsys.readouterr().out
    assert states(said)["extension"] == "red"
    assert "fix: give RINGKERN_TIMEOUT a value that it can have, or unset it" in said


# ---- rings --------------------------------------------------------------------------------------


def wrong() -> None:
    if dist.get_rank() == 1:
        raise rings.WrongResult("3 of 7 elements are wrong")


def crash() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def hang() -> None:
    if dist.get_rank() == 0:
        time.sleep(LIMIT_S)


def well() -> None:
    dist.barrier()


def leave_a_mark(file: str) -> None:
    with open(file, "a") as marks:
        marks.write("x")


def test_a_ring_that_goes_wrong_is_red_and_the_next_is_run(tmp_path: Path) -> None:
    tests = [rings.Test(f.__name__, f) for f in (well, wrong)]
    tests.append(rings.Test("mark", leave_a_mark, (str(tmp_path / "marks"),)))
    found = list(smoke.run(tests, 2))
    assert [f.state for f in found] == [GREEN, RED, GREEN]
    assert (tmp_path / "marks").read_text() == "xx", "by fresh ranks alone"
    assert found[1].found == "rank 1: WrongResult: 3 of 7 elements are wrong"
    assert "env --all" in found[1].fix


def test_a_ring_that_crashes_or_hangs_is_ended() -> None:
    tests = [rings.Test(f.__name__, f) for f in (crash, hang, well)]
    found = list(smoke.run(tests, 2, limit_s=5.0))
    assert [f.state for f in found] == [RED, RED, UNCHECKED]
    assert found[0].name == "crash"
    assert "rank 1 crashed: Segmentation fault" in found[0].found
    assert "in crash" in found[0].found  # where it was
    assert "rank 0 did not come to its end within 5 s" in found[1].found
    assert "in hang" in found[1].found
    assert "2 of its kind have failed" in found[2].found


CALLS: dict[str, tuple[Callable[..., None], tuple[Any, ...], Any, str]] = {
    "all_reduce": (rings.all_reduce, ("cpu", "ring", "ll"), Communicator, "all_reduce"),
    "scatter": (rings.halves, ("cpu", "ll"), Communicator, "reduce_scatter"),
    "gather": (rings.halves, ("cpu", "ll"), Communicator, "all_gather"),
    "shared": (rings.shared_tensors, (), Communicator, "all_reduce"),
    "backend": (rings.backend, ("cpu",), dist, "all_reduce"),
    "broadcast": (rings.backend, ("cpu",), dist, "broadcast"),
    "message": (rings.message, ("cpu",), dist, "recv"),
    "process": (rings.in_process, (("cpu", "cpu"), "ll"), local.Ring, "all_reduce"),
}


def without_effect(rank: int, size: int, name: str) -> str:
    """Returns doctor's text about a call without effect."""
    function, args, owner, call = CALLS[name]
    given = getattr(owner, call)

    def elsewhere(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return given(torch.empty_like(tensor), *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        # A sender waits for its receiver.
        patch.setattr(owner, call, elsewhere if call == "recv" else lambda *_, **__: None)
        try:
            function(*args)
        except rings.WrongResult as error:
            return str(error)
    return "nothing"


@pytest.mark.parametrize("name", CALLS)
def test_a_call_without_effect_is_noticed(name: str, ranks: Callable[[int], Ranks]) -> None:
    said = ranks(2).run(without_effect, name)
    # A broadcast has no effect on the rank that it comes from.
    assert any("elements are wrong" in each for each in said), said


def test_the_gpus_of_a_machine_that_is_not_here() -> None:
    names = [test.name for test in rings.on_gpus(1, 2)]
    assert len(names) == 7
    assert not any("across" in name for name in names)
    found = {test.name: test for test in rings.on_gpus(4, 2)}
    assert found["one process, across GPUs: auto"].args == (["cuda:0", "cuda:1"], "auto")
    assert all(len(name) < 34 for name in found), "columns"
    tests = [*rings.between_processes(), *rings.in_one_process()]
    assert len({test.name for test in tests}) == len(tests)
