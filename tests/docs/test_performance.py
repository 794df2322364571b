"""The figures of docs/design/performance.md are those of the files that it names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ringkern.choose import tables
from ringkern.choose.cost import Way
from ringkern.tools.model import measured, one_gpu

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "performance.md"
WAYS = {
    "`one_shot` LL": "one_shot/ll",
    "`one_shot` Simple": "one_shot/simple",
    "`two_shot` Simple": "two_shot/simple",
    "ring LL": "ring/ll",
    "ring LL128": "ring/ll128",
    "ring Simple": "ring/simple",
    "`auto`": "auto",
}
CALLS = {
    "`ringkern.ring_all_reduce`": "ring_all_reduce",
    "`dist.all_reduce`, backend ringkern": "backend ringkern",
    "`dist.all_reduce`, backend Gloo": "backend gloo",
}

BETWEEN = ("2x2", "2x2-1gbit")
ALSO_BETWEEN = ("3x2", "3x2-1gbit", "2x3")


def results(name: str) -> Any:
    return json.loads((ROOT / "bench" / "results" / f"2026-11-21-{name}.json").read_text())


def table(heading: str) -> tuple[list[str], list[list[str]]]:
    """Returns the first table under a heading: its head and its rows."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    after = section[section.index("\n|") + 1 :].splitlines()
    lines = [line.strip("| ") for line in takewhile(lambda line: line.startswith("|"), after)]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return rows[0], rows[2:]


def shown(microseconds: float) -> str:
    if microseconds < 10:
        return f"{microseconds:.2f}"
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:,.0f}"


def rows_of(name: str) -> dict[int, Any]:
    return {row["size_bytes"]: row for row in results(name)["rows"]}


def size_of(cell: str) -> int:
    return int(cell.replace(",", ""))


def test_ways() -> None:
    head, rows = table("One way next to another")
    measured = rows_of("cpu-2-ranks-ways")
    assert head[1:] == list(WAYS)
    assert len(rows) == 4
    for row in rows:
        times = measured[size_of(row[0])]["times_us"]
        assert row[1:] == [shown(times[WAYS[name]]) for name in head[1:]]


def test_limits() -> None:
    _, rows = table("Next to the machine")
    measured = rows_of("cpu-2-ranks-peers")
    assert len(rows) == 4
    for row in rows:
        of = measured[size_of(row[0])]
        plain, shared = (
            next(c for c in of["comparisons"] if (c["mode"], c["tensor"]) == ("c", tensor))
            for tensor in ("plain", "shared")
        )
        assert row[1:] == [
            shown(plain["time_us"]),
            f"{plain['time_over_limit']:.2f}",
            shown(shared["time_us"]),
            f"{shared['time_over_limit']:.2f}",
            of["placement"],
        ]


@pytest.mark.parametrize(("column", "name"), [(1, "overhead-1-rank"), (2, "overhead-2-ranks")])
def test_overhead(column: int, name: str) -> None:
    _, rows = table("The cost of a call without its data")
    times = results(name)["times_us"]
    assert [row[0] for row in rows] == list(CALLS)
    for row in rows:
        assert row[column] == f"{median(times[CALLS[row[0]]]):.2f}"


def test_the_end_of_a_layer() -> None:
    _, rows = table("The end of a layer")
    found = json.loads((ROOT / "bench/results/2026-11-26-norm-2-ranks.json").read_text())
    cases = {case["case"]: case["times_us"] for case in found["cases"]}
    assert len(rows) == 2
    for row in rows:
        fused, separate = (median(cases[row[0]][name]) for name in ("fused", "separate"))
        assert row[1:] == [shown(fused), shown(separate), f"{fused / separate:.2f}"]


def test_between_hosts() -> None:
    _, rows = table("Between hosts")
    assert len(rows) == 3
    for row in rows:
        size = size_of(row[0])
        expected = []
        for name in BETWEEN:
            of = rows_of(f"hosts-{name}")[size]["results"]
            times = [of["ringkern"]["time_us"], of["gloo"]["time_us"]]
            expected += [shown(time) for time in times] + [f"{times[1] / times[0]:.2f}"]
            expected += [f"{max(of['ringkern']['sent_bytes']) / size:.3f}"]
        assert row[1:] == expected


@pytest.mark.parametrize("name", [*BETWEEN, *ALSO_BETWEEN])
def test_between_hosts_as_the_page_says(name: str) -> None:
    """Right, above 64 KiB never slower than Gloo, and with the bytes of theory."""
    found = results(f"hosts-{name}")
    assert f"bench/results/2026-11-21-hosts-{name}.json" in PAGE.read_text()
    for row in found["rows"]:
        size, of = row["size_bytes"], row["results"]
        for contender in ("ringkern", "backend"):
            assert of[contender]["wrong"] == 0
            if size > 64 << 10:
                assert of[contender]["time_us"] < of["gloo"]["time_us"]
                share = found["theory_sent_over_size"][contender]
                assert share <= max(of[contender]["sent_bytes"]) / size <= 1.02 * share


def test_commands_are_those_of_the_files() -> None:
    text = " ".join(PAGE.read_text().split())
    for name in ("cpu-2-ranks-peers", "cpu-2-ranks-ways"):
        assert results(name)["command"].removesuffix(" --json out.json") in text


H100, H200, NEWEST = (
    ROOT / "bench" / "results" / f"{name}.json"
    for name in ("2026-11-26-h100", "2026-11-26-h200", "2026-11-28-h100")
)


def speeds(file: Path, *, on_host: bool = False) -> list[dict[tuple[int, int, str], Any]]:
    """Returns the part speed of each run: rows by ranks, bytes and contender."""
    return [
        {
            (row["ranks"], row["size_bytes"], row["contender"]): row
            for row in part["figures"]["rows"]
        }
        for run in json.loads(file.read_text())["runs"]
        if ("--memory host" in run.get("command", "")) == on_host
        for part in run.get("parts", [])
        if part["part"] == "speed"
    ]


def test_predicted_on_one_gpu() -> None:
    """Compares the table with the model's predictions, and the text with their errors."""
    text = PAGE.read_text()
    gpu, compared = measured.read(H200)
    section = " ".join(text.split("## Predicted on one GPU\n")[1].split())
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.split("## Predicted on one GPU\n")[1].splitlines()
        if re.match(r"\| \d", line)
    ]
    ways = [Way("two_shot", "simple"), Way("one_shot", "ll")]
    ways += [Way("ring", protocol) for protocol in ("ll", "ll128", "simple")]
    found = {(row.ranks, row.nbytes, row.way): row for row in compared}
    assert len(rows) == 3
    for row in rows:
        at = int(row[0]), size_of(row[1])
        cells = [found.pop((*at, way), None) for way in ways]
        assert row[2:] == [
            "-" if one is None else f"{shown(one.measured_us)} / {shown(one.terms.time_us)}"
            for one in cells
        ]
    ratios = [row.ratio for row in compared]
    off = median(measured.error_of(ratio) for ratio in ratios)
    assert (
        f"goes from {min(ratios):.2f} to {max(ratios):.2f}, and half of the {len(ratios)}"
        in section
    )
    assert f"within a factor of {off:.2f}" in section
    earlier = [row.ratio for row in measured.read(H100)[1]]
    assert f"[{min(earlier):.2f} to {max(earlier):.2f} of the times]" in section
    newest = [row.ratio for row in measured.read(NEWEST)[1]]
    half = median(max(ratio, 1 / ratio) for ratio in newest)
    told = f"[{min(newest):.2f} to {max(newest):.2f}](../../{NEWEST.relative_to(ROOT)})"
    assert f"{told}, half within a factor of {half:.2f}" in section
    assert f"{one_gpu.INSTRUCTION_NS} ns each, fitted" in section
    assert f"{gpu.launch_us} us, measured" in section
    assert f"{gpu.hop_us['ll']:.3f} us, with Simple's fence {gpu.hop_us['simple']} us" in section
    assert f"at {gpu.hbm_gb_s:,.0f} GB/s, staged bytes at {gpu.l2_gb_s:,.0f} GB/s" in section


@pytest.mark.parametrize("file", [H200, NEWEST], ids=["H200", "H100"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_predicted_choice_is_the_quickest(ranks: int, file: Path) -> None:
    """Holds for the ways that `auto` may take between processes: docs/design/choice.md."""
    rows, times = tables.table("cuda", ranks)["automatic"], speeds(file)[-1]
    names = {("one_shot", "ll"): "one_shot", ("ring", "ll"): "ll", ("ring", "simple"): "simple"}
    for size in sorted({key[1] for key in times}):
        way = next(row[1:] for row in rows if size < row[0])
        found = {of: times.get((ranks, size, f"ringkern/{name}")) for of, name in names.items()}
        quickest = min((of for of, row in found.items() if row), key=lambda of: found[of]["hot_us"])
        assert way in (("two_shot", "ll"), quickest)


def test_over_host_memory() -> None:
    """Measured on one GPU, whose link the ranks share; predicted with a link each."""
    (times,) = speeds(H200, on_host=True)
    section = PAGE.read_text().split("### Over host memory\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if re.match(r"\| \d", line)
    ]
    ways = {"simple": ("ring", "simple"), "ll": ("ring", "ll"), "one_shot": ("one_shot", "ll")}
    assert len(rows) == 4 + 2
    for row in rows[:-2]:
        at = int(row[0]), size_of(row[1])
        found = [times.get((*at, f"ringkern/{name}")) for name in ways]
        assert row[2:] == ["-" if of is None else shown(of["hot_us"]) for of in found]
    ratios: dict[str, list[float]] = {}
    for (ranks, size, contender), of in times.items():
        name = contender.removeprefix("ringkern/")
        if name in ways:
            link = replace(one_gpu.GEN5, gb_s=one_gpu.GEN5.gb_s / ranks)
            gpu = one_gpu.over_host(one_gpu.H200, link, ranks)
            predicted = one_gpu.predict(gpu, Way(*ways[name]), ranks, size).time_us
            ratios.setdefault(name, []).append(predicted / of["hot_us"])
    text = " ".join(section.split())
    every = ratios["ll"] + ratios["simple"]
    assert f"are {min(every):.2f} to {max(every):.2f} of the times" in text
    assert f"Simple {min(ratios['simple']):.2f} to {max(ratios['simple']):.2f}." in text
    for row in rows[-2:]:
        cells = []
        for link in (one_gpu.GEN4, one_gpu.GEN5):
            gpu = one_gpu.over_host(one_gpu.H200, link, 2)
            for protocol in ("ll", "simple"):
                time = one_gpu.predict(gpu, Way("ring", protocol), 2, size_of(row[0])).time_us
                cells.append(shown(time))
        assert row[1:5] == cells


def test_cuda() -> None:
    """The newest run."""
    _, rows = table("On CUDA")
    now = speeds(NEWEST)[-1]
    contenders = ["auto", "simple", "ll", "ll128", "one_shot"]
    names = [*(f"ringkern/{name}" for name in contenders), "nccl/auto"]
    assert len(rows) == 6
    for row in rows:
        at = int(row[0]), size_of(row[1])
        times = [now[(*at, name)]["hot_us"] if (*at, name) in now else None for name in names]
        assert row[2:8] == ["-" if us is None else shown(us) for us in times]
        assert row[8] == f"{now[(*at, 'ringkern/auto')]['share']:.0%}"
    shares = [f"{100 * now[k, 256 << 20, 'ringkern/simple']['share']:.0f}" for k in (2, 4, 8)]
    assert f"Simple reaches {shares[0]}, {shares[1]} and {shares[2]} %" in PAGE.read_text()


def test_applications() -> None:
    _, rows = table("Applications")
    measured: dict[int, list[float]] = {}
    for *what, busy, ours, others in rows:  # the first cell is empty below the first row of three
        if what:
            found = re.match(r"\[(.*)\]\(../../(.*)\)", what[0])
            assert found
            content = json.loads((ROOT / found[2]).read_text())
            measured = {
                row["busy"]: [median(ms) for ms in row["ms"].values()]
                for row in content["rows"]
                if row["what"] == found[1]
            }
        cells = [*ours.split("; unfused "), others]
        shown = [float(cell.replace(",", "")) for cell in cells]
        assert shown == pytest.approx(measured.pop(int(busy)), rel=0.005), (what, busy)
    assert len(rows) == 12
