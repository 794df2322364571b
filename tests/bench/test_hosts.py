"""bench/hosts.py: real runs between network namespaces, and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringkern.tools import launch, parsers
from ringkern.tools.bench import command
from tests.hosts.namespaces import Net, why_not

pytestmark = pytest.mark.alone

LIMIT_S = 120
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "bench" / "hosts.py")
SHORT = ("--repeats", "3", "--seconds", "0.02", "--timeout", "100")


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **env},
    )


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.skipif(why_not(1.0) is not None, reason=str(why_not(1.0)))
@pytest.mark.parametrize(
    ("ranks", "gbit", "theory"), [("2", [], 1.5), ("2,1", ["--gbit", "1"], 4 / 3)]
)
def test_times_and_bytes_of_all_contenders(
    tmp_path: Path, ranks: str, gbit: list[str], theory: float
) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    sizes = ("-b", "64K", "-e", "256K")
    done = run(PROGRAM, "--ranks", ranks, *gbit, *sizes, *SHORT, "--out", str(out), "--plot", plot)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["ranks_on_host"] == ([2, 2] if ranks == "2" else [2, 1])
    assert found["theory_sent_over_size"]["gloo"] == pytest.approx(theory)
    assert found["theory_sent_over_size"]["ringkern"] == 1
    assert f"# command: {found['command']}\n" in done.stdout
    shown = rows_of(done.stdout)
    assert [row["size_bytes"] for row in found["rows"]] == [1 << 16, 1 << 18]
    for row, line in zip(found["rows"], shown, strict=True):
        assert line[0] == str(row["size_bytes"])
        assert list(row["results"]) == ["ringkern", "backend", "gloo"]
        for number, (name, result) in enumerate(row["results"].items()):
            share = found["theory_sent_over_size"][name] * row["size_bytes"]
            for crossed in result["sent_bytes"] + result["received_bytes"]:
                assert share <= crossed <= 1.2 * share, (name, row["size_bytes"])
            assert len(result["sent_bytes"]) == len(result["received_bytes"]) == 2
            assert sorted(result["times_us"])[1] == result["time_us"]
            assert line[1 + 2 * number] == f"{result['time_us']:.1f}"
            assert result["wrong"] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_under_torchrun_without_an_interface(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    short = ("-e", "1K", "--contenders", "gloo", *SHORT, "--out", str(out))
    done = run(*torchrun, PROGRAM, *short, GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr
    assert [line[0] for line in rows_of(done.stdout)] == ["1024"]
    found = json.loads(out.read_text())
    assert (found["ranks_on_host"], found["hosts"]) == ([2], "the nodes of torchrun")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--contenders", "nccl"], "choose of ringkern, backend, gloo"),
        (["--ranks", "2,2,2"], "--ranks: 3 numbers for 2 hosts"),
        (["--gbit", "0"], "--gbit: '0': give a number above 0"),
    ],
)
def test_wrong_arguments(arguments: list[str], expected: str) -> None:
    done = run(PROGRAM, *arguments)
    assert done.returncode == 2
    assert expected in done.stderr


def test_without_namespaces_it_says_what_is_missing(tmp_path: Path) -> None:
    done = run(PROGRAM, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "hosts cannot be made of network namespaces here: no unshare" in done.stderr
    assert "util-linux" in done.stderr
    assert "torchrun" in done.stderr


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(
    ("collective", "each"), [("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)]
)
def test_the_command_bench_between_hosts(collective: str, each: int) -> None:
    with Net(2) as net:
        command = ["-m", "ringkern", "bench", "--coll", collective, "-b", "64", "-e", "4K"]
        first, *others = net.run(
            [*command, "-f", "64", "--seconds", "0.02"], [each, each], timeout=LIMIT_S
        )
    assert first.status == 0, first.err
    assert f"# {collective} of {2 * each} ranks on 2 hosts, in place" in first.out
    assert "# Out of bounds values : 0 OK\n" in first.out
    assert [(line[0], line[8]) for line in rows_of(first.out)] == [("64", "0"), ("4096", "0")]
    for other in others:
        assert (other.status, other.out) == (0, "")


def test_memory_is_that_of_the_ranks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    assert launch.ranks_here(None) == launch.DEFAULT_RANKS
    assert launch.ranks_here(5) == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # without RANK it is ignored
    assert launch.ranks_here(5) == 5
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1000000")
    assert launch.ranks_here(None) == 2
    asked = parsers()["bench"].parse_args(["-e", "64M"])
    assert command._settings(asked).sizes[-1] == 64 << 20
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    assert launch.ranks_here(None) == 1000000
    with pytest.raises(ValueError, match="1000000 ranks need"):
        command._settings(asked)


def test_wrong_elements_are_counted_and_shown() -> None:
    given = """
import sys
import torch.distributed as dist
sys.path.insert(0, "bench")
import hosts, hosts_rank
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
wrong = hosts_rank.check(lambda x: x[3:5].add_(1), 64)
result = {"time_us": 2.0, "sent_bytes": None, "wrong": wrong}
print(hosts.line({"size_bytes": 64, "results": {"ringkern": result, "gloo": result}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", given], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        *("64", "2.0", "n/a", "2.0", "n/a", "1.00", "WRONG:", "ringkern,", "gloo")
    ]
