"""``bench``: its measurements and its output; no rank outlives its launch."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ringkern
from ringkern.tools import exact
from ringkern.tools.bench import perf, report
from ringkern.tools.program import main
from ringkern.tools.turns import LEAST_REPEATS, Block, Result
from ringkern.units import parse_size
from tests import forked

LIMIT_S = 120
INFO = ringkern.build_info()
CORES = len(os.sched_getaffinity(0))


def run(*arguments: str, module: str = "ringkern") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked.python(), "-m", module, *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def test_parse_size() -> None:
    for text, size in (
        ("0", 0),
        ("8", 8),
        ("64K", 65536),
        ("64k", 65536),
        ("1M", 1 << 20),
        ("2GiB", 2 << 30),
        ("10KB", 10240),
        ("10kB", 10240),
        ("7B", 7),
        (" 5 ", 5),
    ):
        assert parse_size(text) == size
    for text in ("", "K", "-1", "1.5M", "1T", "8 8", "0x10", "1iK", "1i", "4Mb", "4mb", "1Kib"):
        with pytest.raises(argparse.ArgumentTypeError, match="as 64K"):
            parse_size(text)


def test_sizes() -> None:
    assert perf.geometric_sizes(8, 64, 2) == (8, 16, 32, 64)
    assert perf.geometric_sizes(8, 63, 2) == (8, 16, 32)
    assert perf.geometric_sizes(5, 5, 3) == (5,)


def test_bandwidths_as_nccl_tests_has_them() -> None:
    assert perf.bandwidths("all_reduce", 4, 8_000_000, 1000.0) == (8.0, 12.0)
    assert perf.bandwidths("all_gather", 4, 8_000_000, 1000.0) == (8.0, 6.0)
    assert perf.bandwidths("all_reduce", 1, 8_000_000, 1000.0) == (8.0, 0.0)


def is_accepted(op: str, kind: torch.dtype) -> bool:
    if kind.is_floating_point:
        return op not in ("band", "bor", "bxor")
    return op not in ("avg", "premul_sum")


@pytest.mark.parametrize("op", INFO["ops"])
def test_exact_values_have_one_result_in_every_order(op: str) -> None:
    """Expects one result of both orders, rounded to the dtype at each hop."""
    kinds = [getattr(torch, name) for name in INFO["dtypes"]]
    wrong = [
        f"{kind} of {ranks} ranks: {why}"
        for kind in kinds
        if is_accepted(op, kind)
        for ranks in (1, 2, 3, 4, 7, 16)
        for why in what_differs(op, kind, ranks)
    ]
    assert wrong == []


def what_differs(op: str, kind: torch.dtype, ranks: int) -> Iterator[str]:
    given = [exact.all_reduce(op, kind, rank, ranks, 300)[0] for rank in range(ranks)]
    expected = exact.all_reduce(op, kind, 0, ranks, 300)[1]
    if not all(len(x) == len(expected) == 300 and x.dtype == kind for x in given):
        yield "other values"
    wide = torch.float64 if kind.is_floating_point else torch.int64
    if op == "premul_sum":
        given = [(x.to(wide) * exact.PREMUL_FACTOR).to(kind) for x in given]
    for order in (given, given[::-1]):
        result = functools.reduce(
            lambda a, b: exact._COMBINE[op](a.to(wide), b.to(wide)).to(kind), order
        )
        if op == "avg":
            result = (result.to(wide) / ranks).to(kind)
        if exact.differences(result, expected):
            yield "another result"
    if ranks > 1 and not exact.differences(given[0], expected):
        yield "a call that does nothing is not noticed"


@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2"])
def test_a_wrong_element_is_counted(dtype: str) -> None:
    expected = exact.all_reduce("sum", getattr(torch, dtype), 0, 2, 300)[1]
    actual = expected.clone()
    actual[7] = float("nan")
    actual[251] = actual[251].float() + 1
    assert exact.differences(actual, expected) == 2


def test_wrong_results_fail_the_table() -> None:
    settings = perf.Settings(sizes=(8,), gloo=False)
    times = Block(array("d", (1.0, 2.0, 6.0)))
    rows = [perf.Row(8, 2, {"ringkern": Result.of([times], "unknown", 3)})]
    shown = report.Report(settings, 2, report.machine(), "today", "bench")
    assert rows_of(shown.line(rows[0])) == [
        ["8", "2", "float32", "sum", "-1", "2.00", "0.00", "0.00", "3"]
    ]
    assert "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 0.004" in shown.footer(rows)
    assert report.total_wrong(rows) == 3


def test_the_ratio_is_of_turns_of_one_round() -> None:
    turns = {"ringkern": (2.0, 2.0, 4.0, 4.0, 4.0), "gloo": (3.0, 3.0, 3.0, 6.0, 6.0)}
    results = {
        name: Result.of([Block(array("d", [time])) for time in times_us], "unknown", 0)
        for name, times_us in turns.items()
    }
    shown = report.Report(perf.Settings(sizes=(8,)), 2, report.machine(), "today", "bench")
    assert shown.line(perf.Row(8, 2, results)).split()[-1] == "1.50"


def test_bench_next_to_gloo(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = f"bench -n 2 -b 8 -e 2K -f 16 -w 2 -c 2 --seconds 0.02 -J {out}"
    done = run(*command.split())
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert [row[:5] for row in rows] == [
        [size, count, "float32", "sum", "-1"]
        for size, count in (("8", "2"), ("128", "32"), ("2048", "512"))
    ]
    assert ("; a core each\n" if CORES > 1 else "; not pinned\n") in done.stdout
    for row in rows:
        assert len(row) == 5 + 4 + 4 + 1
        assert row[8] == row[12] == "0"  # wrong
    assert f"# command: python -m ringkern {command}\n" in done.stdout
    assert "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : " in done.stdout

    found = json.loads(out.read_text())
    assert found["ranks"] == 2
    assert found["machine"]["ringkern"] == ringkern.__version__
    assert [row["size_bytes"] for row in found["rows"]] == [8, 128, 2048]
    for row, shown in zip(found["rows"], rows):
        for name, at in (("ringkern", 5), ("gloo", 9)):
            result = row["results"][name]
            assert len(result["blocks"]) >= LEAST_REPEATS
            kept = [block["median_us"] for block in result["blocks"] if block["kept"]]
            assert min(kept) <= result["time_us"] <= max(kept)
            assert f"{result['time_us']:.2f}" == shown[at]
            assert result["wrong"] == 0
            assert all(block["calls"] >= 1 for block in result["blocks"])


@pytest.mark.parametrize(
    ("arguments", "expected", "placed"),
    [
        (
            "-n 3 --coll all_gather -d half -b 2 -e 100 -i 49 --rotate 1K",
            [["6", "1", "float16", "none"], ["48", "8", "float16", "none"],
             ["96", "16", "float16", "none"]],
            "; a core each" if CORES > 2 else "; not pinned",
        ),
        (
            "-n 2 --unpinned --coll reduce_scatter -d f8e5m2 -o max -b 8 -e 64 -f 8 --proto ll",
            [["8", "4", "float8_e5m2", "max"], ["64", "32", "float8_e5m2", "max"]],
            "; not pinned",
        ),
        ("-n 1 -o premul_sum -b 8 -e 8", [["8", "2", "float32", "premul_sum"]], "; a core each"),
        (
            "-n 2 --threads 2 --coll all_gather -b 256K -e 256K",
            [["262144", "32768", "float32", "none"]],
            f"; 2 threads each, {'a core a thread' if CORES > 3 else 'not pinned'}",
        ),
    ],
)  # fmt: skip
def test_bench_alone(
    arguments: str, expected: list[list[str]], placed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ranks that share cores are left to the kernel."""
    status = main(["bench", *arguments.split(), "--vs", "none", "--seconds", "0.02"])
    said = capfd.readouterr()
    assert status == 0, said.err
    assert f"{placed}\n" in said.out
    rows = rows_of(said.out)
    assert [row[:4] for row in rows] == expected
    assert all(len(row) == 9 and row[8] == "0" for row in rows)


def test_bench_joins_torchrun() -> None:
    command = "--standalone --nproc-per-node 2 -m ringkern bench -e 8 -c 0 --seconds 0.02"
    done = run(*command.split(), module="torch.distributed.run")
    assert done.returncode == 0, done.stderr
    [row] = rows_of(done.stdout)  # one rank prints
    assert row[8] == row[12] == "N/A"


def test_a_dtype_that_a_contender_lacks_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-e", "8", "-d", "f8e4m3"]) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "gloo has no all_reduce of float8_e4m3fn" in said
    assert "--vs none" in said
