"""Predictions for ranks with several threads, on one socket and on two, next to measurements."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
from pathlib import Path

import pytest

from ringkern.tools import model
from ringkern.tools.model import sockets
from ringkern.tools.model.sockets import LIBRARIES, SHARED, Server, time_us

K, M = 1 << 10, 1 << 20
RESULTS = Path(__file__).parents[2] / "bench" / "results"


def predict(server: Server, name: str, nbytes: float) -> float:
    return time_us(server, LIBRARIES[name], nbytes)


class TestFormulas:
    def test_in_caches_by_hand(self) -> None:
        """2 ranks of 8 threads: n, 2n and n bytes at 24 GB/s a core, and the start of threads."""
        start = 1.5 + 1.15 * 8**0.4
        assert predict(Server(2, 8), "ringkern", M) == pytest.approx(
            start + 4 * M / (8 * 24e3) + 3 * 0.2
        )
        assert predict(Server(2, 8), SHARED, M) == pytest.approx(
            start + 2 * M / (8 * 25e3) + 0.2
        )  # fmt: skip

    def test_memory_is_the_limit_of_large_tensors(self) -> None:
        """DeepSpeed writes and reads its buffers: 2n, 1.25n and 2n bytes of each of 4 ranks."""
        server = Server(4, 14, memory_gb_s=100.0)
        nbytes = 1 << 30
        assert predict(server, "deepspeed", nbytes) == pytest.approx(
            4 * 5.25 * nbytes / 100e3, rel=0.01
        )
        assert predict(server, SHARED, nbytes) == pytest.approx(4 * 2 * nbytes / 100e3, rel=0.01)

    def test_the_link_is_the_limit_between_sockets(self) -> None:
        """Four of the 8 ranks, those of a socket, copy half of the result across."""
        one, two = (Server(8, 56, sockets=n) for n in (1, 2))
        more = predict(two, "deepspeed", 4 * M) - predict(one, "deepspeed", 4 * M)
        across = 2 * 4 * 2 * M / 70e3  # reduced parts and the result
        inside = (1.125 + 2) * 4 * M / (56 * 10e3)
        assert more == pytest.approx(across - inside + 2 * 0.3)

    def test_a_chain_crosses_the_link_once(self) -> None:
        """The largest pass: n, an own part, two given ones; n of all ranks of a socket cross."""
        slow = Server(8, 56, 2, link_gb_s=7.0)
        passes = 2 * 64 * M * 3 / 4, 2 * 64 * M
        took = 64 * M / 7e3 + sum(passes) / (56 * 14e3)
        assert predict(slow, "ringkern", 64 * M) == pytest.approx(took, rel=0.01)

    def test_a_chain_takes_less_time_wherever_it_is_taken(self) -> None:
        flat = dataclasses.replace(LIBRARIES["ringkern"], passes=sockets.two_shot)
        for ranks, threads in ((4, 1), (4, 28), (8, 1), (8, 14), (16, 7)):
            server = Server(ranks, threads, 2)
            for nbytes in (1 << shift for shift in range(18, 31)):
                assert predict(server, "ringkern", nbytes) < time_us(server, flat, nbytes)
            small = 256 * K - 1
            assert predict(server, "ringkern", small) == time_us(server, flat, small)

    def test_a_small_call_has_one_thread(self) -> None:
        one, many = Server(2, 1), Server(2, 8)
        assert predict(one, "ringkern", 64 * K) == predict(many, "ringkern", 64 * K)
        assert predict(one, "ringkern", M) > predict(many, "ringkern", M)


class TestMeasured:
    def test_published_times(self) -> None:
        """Half of them within 15 %, and all within 30 %."""
        errors = [abs(row["error"]) for row in sockets.as_rows()]
        assert sockets.median_error() == statistics.median(errors) <= 0.15
        assert max(errors) < 0.3

    def test_times_of_this_project(self) -> None:
        """16 cores of one socket: the medians of errors, and of each library the largest one."""
        errors: dict[str, list[float]] = {}
        for ranks, threads in ((2, 8), (4, 4), (8, 2)):
            file = RESULTS / f"2026-11-27-cpu-{ranks}x{threads}-threads.json"
            server = Server(ranks, threads, memory_gb_s=125.0, cache_bytes=128 * M)
            for row in json.loads(file.read_text())["rows"]:
                times = {each["contender"]: each["time_us"] for each in row.get("results", [])}
                for each in row["comparisons"]:
                    times[{"plain": "ringkern", "shared": SHARED}[each["tensor"]]] = each["time_us"]
                for name in LIBRARIES:
                    if name in times:
                        ratio = predict(server, name, row["size_bytes"]) / times[name]
                        errors.setdefault(name, []).append(abs(ratio - 1))
        assert {name: len(found) for name, found in errors.items()} == {
            "ringkern": 14, SHARED: 14, "deepspeed": 10, "vllm": 10,
        }  # fmt: skip
        medians = {name: statistics.median(found) for name, found in errors.items()}
        assert max(medians.values()) < 0.25, medians
        assert max(max(found) for found in errors.values()) < 0.6


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    model.add_arguments(parser)
    assert model.run(parser.parse_args(["--device", "cpu", *arguments])) == 0
    return capsys.readouterr().out


def test_the_page_says_what_is_predicted() -> None:
    text = (RESULTS.parents[1] / "docs" / "design" / "cpu.md").read_text()
    (table,) = re.findall(r"^\| ranks x threads \| bytes \| over.*\n.*\n((?:\|.*\n)+)", text, re.M)
    flat = dataclasses.replace(LIBRARIES["ringkern"], passes=sockets.two_shot)
    for line in table.splitlines():
        shape, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        ranks, threads = map(int, shape.split(" x "))
        nbytes, *times = (int(cell.replace(",", "")) for cell in cells)
        every = [flat, *LIBRARIES.values()]
        assert times == [round(time_us(Server(ranks, threads, 2), one, nbytes)) for one in every]


class TestCommand:
    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = run(capsys, "-n", "8", "--sockets", "2", "--threads", "14", "--sizes", "32M")
        lines = text.splitlines()
        assert lines[0] == (
            "a host: 8 ranks of 14 threads on 2 sockets, each with 245 GB/s of memory, 70 GB/s "
            "between them"
        )
        server = Server(8, 14, 2)
        for name in LIBRARIES:
            assert name in lines[2]
            assert f"{predict(server, name, 32 * M):.1f}" in lines[3].replace("*", "")
        assert "Nothing was measured on several sockets." in text

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = json.loads(run(capsys, "-n", "2", "--threads", "8", "--sizes", "1M", "--json"))
        assert (data["ranks"], data["threads"], data["sockets"]) == (2, 8, 1)
        assert [e["way"] for e in data["rows"][0]["estimates"]] == [
            e.way for e in sockets.estimates(Server(2, 8), M)
        ]

    def test_published(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = run(capsys, "--published")
        assert f"Median error: {sockets.median_error():.0%}." in text
        assert json.loads(run(capsys, "--published", "--json"))["rows"] == sockets.as_rows()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--device", "cuda", "--threads", "4"], "of CPUs: give --device cpu"),
            (["--device", "cpu", "-n", "4", "--sockets", "3"], "as many ranks, such as -n 6"),
            (["--device", "cpu", "--threads", "4", "--hosts", "2", "--cores", "4"],
             "of one host: leave out --cores, --hosts"),
        ],
    )  # fmt: skip
    def test_arguments_that_do_not_fit(self, arguments: list[str], said: str) -> None:
        parser = argparse.ArgumentParser()
        model.add_arguments(parser)
        with pytest.raises(ValueError, match=said):
            model.run(parser.parse_args(arguments))
