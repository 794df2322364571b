"""The tables of docs/design/choice.md with the fastest way by size and ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringkern.choose import cache, tables, topology
from ringkern.choose.cost import ANY_SIZE
from ringkern.tools.model import Network, cpu, estimates, node_of, sweep
from ringkern.tools.model.estimate import FLAT_RING, FLAT_TREE, Estimate

H100 = node_of(topology.recorded("dgx-h100"))
PAGE = Path(__file__).parents[2] / "docs" / "design" / "choice.md"


def on_cpus(hosts: int, nbytes: float) -> list[Estimate]:
    return cpu.estimates(cpu.Host(8, 8), cpu.Ethernet(hosts), nbytes)


def on_h100s(hosts: int, nbytes: float) -> list[Estimate]:
    return estimates(H100, Network(hosts, 50.0), nbytes)


@pytest.mark.parametrize(
    ("head", "count", "device", "predict", "ways"),
    [
        ("faster than Gloo over all ranks", 4, "cpu", on_cpus, (sweep.ALONE, FLAT_TREE)),
        ("faster than one ring over all ranks", 3, "cuda", on_h100s,
         (FLAT_RING, FLAT_TREE, sweep.ALONE)),
    ],
)  # fmt: skip
def test_the_page_says_what_is_predicted(
    head: str, count: int, device: str, predict: sweep.Predict, ways: tuple[str, ...]
) -> None:
    (table,) = re.findall(rf"^\| hosts \| {head}.*\n.*\n((?:\|.*\n)+)", PAGE.read_text(), re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len(rows) == count
    for hosts, *cells in rows:
        found = sweep.faster(predict, device, int(hosts.replace(",", "")))
        assert cells == [sweep.say(found[way]) for way in ways]


def test_the_page_says_what_is_taken_on_cuda() -> None:
    (table,) = re.findall(r"^\| ranks \| `one_shot`.*\n.*\n((?:\|.*\n)+)", PAGE.read_text(), re.M)
    predicted = {found.ranks: found for found in cache.read(cache.PREDICTED).measured}
    lines = table.splitlines()
    assert len(lines) == len(predicted)
    for line in lines:
        ranks, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows = tables.rows_for(predicted[int(ranks)], int(ranks))["automatic"]
        assert [cell for cell in cells if cell != "-"] == [
            "any" if end == ANY_SIZE else f"{round(end / 1024):,} KiB" for end, *_ in rows
        ]
