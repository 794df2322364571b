"""``python -m bench.compare``: real runs, names, and libraries that are not installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.compare import catalogue, command, install
from bench.compare.contest import LONGEST_IN_LINES, run
from bench.compare.field import Field
from bench.compare.install import Folder, Installer, InstallError
from bench.compare.rows import Settings
from ringkern.config import ALGORITHMS, PROTOCOLS
from ringkern.tools import launch
from ringkern.tools.program import run_alone

pytestmark = pytest.mark.alone

LIMIT_S = 120


def main(arguments: list[str]) -> int:
    return run_alone("python -m bench.compare", command, arguments)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.compare", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


CORES = len(os.sched_getaffinity(0))


@pytest.mark.skipif(CORES < 2, reason="the limit needs two cores")
def test_ringkern_gloo_and_the_limit(tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    done = bench(
        *("--vs", "gloo,mpich", "--modes", "c,py", "--seconds", "0.05"),
        *("-b", "8", "-e", "32K", "-f", "64", "--rotate", "64K"),
        *("--dir", str(tmp_path / "none"), "-J", str(out), "--plot", str(plot)),
    )
    assert done.returncode == 0, done.stderr
    missing = "# left out: mpich: not installed; python -m bench.compare install --vs mpich\n"
    assert missing in done.stderr
    assert missing in done.stdout
    assert "# Out of bounds values : 0 OK\n" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line[0] for line in lines] == [size for size in ("8", "512", "32768") for _ in range(4)]
    kinds = [("py", "plain"), ("c", "plain"), ("py", "shared"), ("c", "shared")]
    assert [tuple(line[9:11]) for line in lines] == kinds * 3
    for line in lines:
        # Gloo's loop in C++ has not been compiled.
        assert (line[8], line[-1]) == ("0", "gloo" if line[9] == "py" else "-")
    found = json.loads(out.read_text())
    assert set(found["versions"]) == {"ringkern", "ringkern:shared", "gloo"}
    for row in found["rows"]:
        assert row["placement"] != "unknown"
        algorithm, protocol = row["choice"]
        assert algorithm in ALGORITHMS
        assert protocol in PROTOCOLS
        names = {(r["contender"], r["mode"].split("/")[0]) for r in row["results"]}
        movements = {
            ("limit", m) for m in ("one_shot", "scatter_gather", "scatter_gather_c", "shared")
        }
        assert names >= {("ringkern", "py"), ("ringkern:shared", "py"), ("gloo", "py")} | movements
        assert all(r["wrong"] == 0 for r in row["results"])
        assert all(b["round_trips_ns"] for r in row["results"] for b in r["blocks"])
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(CORES < 2, reason="the limit needs two cores")
def test_a_way_that_is_asked_for() -> None:
    done = bench(
        *("--vs", "none", "--modes", "py,c", "--algo", "ring", "--proto", "ll", "-d", "bfloat16"),
        *("-b", "6", "-e", "2K", "-f", "128", "--seconds", "0.02"),
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line[:3] for line in lines] == [
        [size, count, "bfloat16"] for size, count in (("6", "3"), ("768", "384")) for _ in range(2)
    ]
    # Its loop in C++ takes no way.
    assert {tuple(line[8:10]) for line in lines} == {("0", "py")}
    assert {tuple(line[12:14]) for line in lines} == {("ring", "ll")}


def test_ranks_with_two_threads_next_to_a_copy(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = bench(
        *("--vs", "none", "--modes", "py", "--threads", "2", "-b", "256K", "-e", "256K"),
        *("--seconds", "0.05", "-J", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert "in place, 2 threads each, not pinned;" in done.stdout or CORES >= 4
    (row,) = json.loads(out.read_text())["rows"]
    found = {r["contender"]: r for r in row["results"]}
    assert set(found) == {"ringkern", "ringkern:shared", "limit"}
    assert found["limit"]["mode"].startswith("copy/")
    assert found["limit"]["wrong"] is None  # a copy sums nothing
    assert found["ringkern"]["wrong"] == found["ringkern:shared"]["wrong"] == 0


@pytest.mark.skipif(CORES < 2, reason="the limit needs two cores")
def test_the_limit_is_right_at_any_length(tmp_path: Path) -> None:
    sizes = (4, 12, 56, 60, 1000, 65540, 300 << 10, (1 << 20) + 4)
    settings = Settings(sizes=sizes, seconds=0.01, rotate=4 << 20, timeout_s=LIMIT_S)
    loop = Installer(Folder(tmp_path), print).limit()
    with Field(settings, [catalogue.limit(loop)]) as field:
        for row in run(field):
            assert len(row.results) == (5 if row.size < LONGEST_IN_LINES else 4)
            assert {result.wrong for result in row.results.values()} == {0}, row.size
        assert field.left_out == {}


def test_ranks_end_with_the_coordinator(tmp_path: Path) -> None:
    """Also where it is ended in the middle of a run."""
    given = ["--vs", "gloo", "--modes", "py", "--seconds", "60"]
    started = [sys.executable, "-m", "bench.compare", *given]
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("# ringkern")  # all are there
        ranks = [int(pid) for pid in children(process.pid)]
        assert len(ranks) >= 4
        process.terminate()
        assert process.wait(30) == 143
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--vs mpi", "choose of gloo, mpich"),
        ("--vs nccl", "'nccl': takes GPUs, and these are calls on a CPU; `make gpu`"),
        (
            "--vs mpich,vllm --dir /no/such/place",
            "--vs mpich,vllm: nothing to compare with: mpich: not installed; "
            "python -m bench.compare install --vs mpich; vllm: not installed",
        ),
        ("--vs openmpi:fast", "openmpi:segring"),
        ("--vs mpich --modes c++", "py,c"),
        ("--op=max", "unknown argument '--op'"),
        ("--vs mpich -d float64", "float32, float16, bfloat16"),
        ("--plot /no/such/place/out.png", "no such directory"),
        ("remove", "install"),
        ("list --json run", "put --json last"),
    ],
)
def test_bad_arguments(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(arguments.split())
    assert exit_status.value.code == 2
    assert said in capsys.readouterr().err


def test_not_under_torchrun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["--vs", "mpich"])
    assert "without torchrun" in capsys.readouterr().err


def test_a_peer_stands_for_its_configurations(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name in ("openmpi", "mpich"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "mpiexec").touch()
    asked = ["openmpi", "mpich:release_gather", "intelmpi", "vllm", "gloo"]
    chosen, left_out = catalogue.select(asked, folder)
    assert [each.name for each in chosen] == [
        *("openmpi", "openmpi:nocma", "openmpi:segring", "openmpi:rabenseifner"),
        *("mpich:release_gather", "gloo"),
    ]
    assert set(left_out) == {"intelmpi", "vllm"}
    assert {each.peer for each in chosen} == {"openmpi", "mpich", "gloo"}
    assert chosen[0].mpiexec[0] == str(tmp_path / "openmpi" / "bin" / "mpiexec")
    assert "^cma" in chosen[1].mpiexec
    assert chosen[4].variables["MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM"] == "release_gather"
    assert chosen[5].python == sys.executable  # there is no other environment


def test_install_goes_on_after_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def fails(to: Installer) -> None:
        to.run("false")

    def works(to: Installer) -> None:
        to.run("echo", "compiled")
        ran.append(to.folder.path)

    monkeypatch.setattr(install, "PEERS", {"mpich": fails, "vllm": works})
    monkeypatch.setattr(command, "PEERS", install.PEERS)
    assert main(["install", "--vs", "mpich,vllm", "--dir", str(tmp_path / "peers")]) == 1
    assert ran == [tmp_path / "peers"]
    said = capsys.readouterr()
    assert "vllm: installed" in said.out
    assert "error: mpich: " in said.err
    assert "install.log" in said.err
    given = ["--dir", str(tmp_path / "peers"), "--json"]
    assert main(["install", "--vs", "mpich,vllm", *given]) == 1
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["peers"]}
    assert found["vllm"] == {"name": "vllm", "installed": True, "error": None}
    assert "install.log" in found["mpich"]["error"]
    assert "$ echo compiled\ncompiled\n" in (tmp_path / "peers" / "install.log").read_text()
    monkeypatch.setitem(install.PEERS, "gloo", lambda to: to.run("no-such-program"))
    with pytest.raises(InstallError, match="no-such-program"):
        Installer(Folder(tmp_path), print).install("gloo")


@pytest.mark.parametrize("peer", ["mpich", "openmpi", "intelmpi", "gloo", "deepspeed", "vllm"])
def test_installs_exact_versions(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every package is named with its version; nothing is installed here."""
    commands: list[tuple[str, ...]] = []
    version = subprocess.CompletedProcess([], 0, stdout="1.2.3\n")
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    monkeypatch.setattr(
        install.venv, "create", lambda to, **_: (to / site).mkdir(parents=True, exist_ok=True)
    )
    monkeypatch.setattr(Installer, "run", lambda self, *words, **_: commands.append(words))
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: version)  # impi-rt's
    if peer == "vllm":
        with pytest.raises(FileNotFoundError, match=rf"vllm-{install.VLLM}\.tar\.gz"):
            install.PEERS[peer](Installer(Folder(tmp_path), print))
    else:
        install.PEERS[peer](Installer(Folder(tmp_path), print))
    packages = [
        word
        for command in commands
        if "pip" in command
        for word in command[command.index("pip") + 2 :]
        if not word.startswith(("-", "/")) and word != "vllm"  # of --no-binary
    ]
    assert len(packages) >= 3
    assert [name for name in packages if not re.fullmatch(r"[\w-]+==[\d.]+", name)] == []


def test_sources_are_not_unpacked_without_a_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python before 3.10.12 would write to any path in the archive."""
    monkeypatch.delattr(install.tarfile, "data_filter")
    with pytest.raises(InstallError, match=r"3\.10\.12"):
        Installer(Folder(tmp_path), print).vllm_sources(tmp_path / "python")


def test_lists_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mpich" / "bin").mkdir(parents=True)
    (tmp_path / "mpich" / "bin" / "mpiexec").touch()
    assert main(["list", "--dir", str(tmp_path)]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(said) == list(install.PEERS)
    there = {name for name, text in said.items() if text == "installed"}
    assert there == {"gloo", "mpich"}
    assert said["vllm"] == "not installed; python -m bench.compare install --vs vllm"
    assert main(["list", "--vs", "vllm", "--dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peers"] == [{"name": "vllm", "installed": False}]


def test_the_folder_follows_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert install.default_folder() == Path("/somewhere/ringkern/peers")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert install.default_folder() == Path.home() / ".cache" / "ringkern" / "peers"


def test_the_ranks_of_all_contenders_must_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts 3 contenders and the limit, with 2 ranks each."""
    monkeypatch.setattr(launch, "free_memory", lambda: 7 * launch.RANK_BYTES)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(SystemExit) as ended:
        main(["--vs", "gloo", "--modes", "py", "-e", "8"])
    assert ended.value.code == 2
    assert "-n 2 --vs gloo: 8 ranks need at least 512 MiB" in capsys.readouterr().err
