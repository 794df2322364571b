"""Predictions for hosts without GPUs: by hand, at their limits, and what is printed of them."""

from __future__ import annotations

import argparse
import json

import pytest

from ringkern.choose.tables import shipped
from ringkern.tools import model
from ringkern.tools.model import cpu, sweep
from ringkern.tools.model.cpu import Ethernet, Host, estimates

K, M = 1 << 10, 1 << 20
SIZES = [8, M, 512 * M]
HOST = Host(4, 4)


def way(host: Host, network: Ethernet, nbytes: float, name: str) -> model.Estimate:
    return next(e for e in estimates(host, network, nbytes) if e.way == name)


class TestFormulas:
    def test_flat_ring_by_hand(self) -> None:
        """2 hosts of 4: 14 steps, 4 of them between hosts, 14/8 of the tensor at 1.25 GB/s."""
        found = way(HOST, Ethernet(2, 1.25, 30.0), M, "flat ring")
        assert found.latency_us == pytest.approx(4 * 30.0 + 10 * 18.0)
        assert found.time_us == pytest.approx(found.latency_us + 14 / 8 * M / 1.25e3)

    def test_flat_tree_by_hand(self) -> None:
        """9 hosts: four levels, and three ranks of a chain below each host's first."""
        found = way(HOST, Ethernet(9, 1.25, 30.0), M, "flat tree")
        assert found.latency_us == pytest.approx(2 * (4 * 30.0 + 3 * 18.0))
        assert found.time_us == pytest.approx(found.latency_us + 2 * M / 1.25e3)

    @pytest.mark.parametrize(("nbytes", "rails", "pieces"), [(64 * K, 1, 1), (64 * M, 4, 8)])
    def test_hierarchy_by_hand(self, nbytes: int, rails: int, pieces: int) -> None:
        """Over one rail whole tensors go in and out, which is what 4/3 of a scatter moves."""
        network = Ethernet(2, 1.25, 30.0)
        found = way(HOST, network, nbytes, "hierarchy")
        assert (found.rails, found.pieces) == (rails, pieces)
        costs = shipped(4, crowded=False).measured.ways
        times = []
        for half in ("reduce_scatter", "all_gather"):
            fastest = []
            for protocol in model.constants.PROTOCOLS:
                ring = cpu.Way("ring", protocol)
                cost = costs[half, ring].cost
                least = cost.time_us(ring, half, 4, 0)
                moving = cost.time_us(ring, half, 4, nbytes) - least
                fastest.append(least + moving * (4 / 3 if rails == 1 else 1) / pieces)
            times.append(min(fastest))
        between = 2 * 30.0 + nbytes / pieces / 1.25e3
        # The network is slower than the ring, and never waits.
        assert found.time_us == pytest.approx(times[0] + pieces * between + times[1])

    def test_a_rail_alone_is_not_as_fast_as_the_network(self) -> None:
        fast = Ethernet(2, 12.5, 30.0)
        large = 1 << 34
        assert way(HOST, fast, large, "flat ring").bus_gb_s == pytest.approx(3.0, rel=0.01)
        one = Host(1, 1)
        assert way(one, fast, large, "hierarchy").time_us == pytest.approx(large / 3e3, rel=0.01)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_one_rank_a_host_is_the_engine_alone(self, nbytes: int) -> None:
        one, network = Host(1, 1), Ethernet(8)
        own = way(one, network, nbytes, "hierarchy")
        assert own.time_us == pytest.approx(way(one, network, nbytes, "flat ring").time_us)
        assert (own.rails, own.pieces, own.protocol) == (1, 1, "gloo")

    @pytest.mark.parametrize("network", [None, Ethernet(1)])
    def test_one_host_is_the_ring(self, network: Ethernet | None) -> None:
        found = estimates(HOST, network, M)
        assert {e.way for e in found} == {"ring"}
        simple = next(e for e in found if e.protocol == "simple")
        ring = cpu.Way("ring", "simple")
        cost = shipped(4, crowded=False).measured.ways["all_reduce", ring].cost
        assert simple.time_us == pytest.approx(cost.time_us(ring, "all_reduce", 4, M))

    @pytest.mark.parametrize("hosts", [2, 1000])
    @pytest.mark.parametrize("name", model.WAYS)
    def test_twice_as_much_takes_longer(self, hosts: int, name: str) -> None:
        sizes = [8 << i for i in range(30)]
        network = Ethernet(hosts)
        times = [way(HOST, network, size, name).time_us for size in sizes]
        assert times == sorted(times)

    @pytest.mark.parametrize("nbytes", SIZES)
    @pytest.mark.parametrize("name", model.WAYS)
    def test_more_hosts_take_longer(self, nbytes: int, name: str) -> None:
        times = [way(HOST, Ethernet(h), nbytes, name).time_us for h in (2, 4, 64, 512, 1000)]
        assert times == sorted(times)

    @pytest.mark.parametrize("nbytes", [8, 256 * M])
    @pytest.mark.parametrize("name", model.WAYS)
    def test_ranks_that_share_cores_take_longer(self, nbytes: int, name: str) -> None:
        fast = Ethernet(4, 12.5)
        assert way(Host(4, 2), fast, nbytes, name).time_us > (way(HOST, fast, nbytes, name).time_us)

    def test_ranks_that_share_cores_use_one_rail_for_longer(self) -> None:
        found = [way(host, Ethernet(2), M, "hierarchy").rails for host in (HOST, Host(4, 2))]
        assert found == [4, 1]

    def test_bytes_decide_where_the_network_is_slow(self) -> None:
        """Flat, 2(k-1)/k of the tensor leave a host; by the hierarchy 2(h-1)/h."""
        slow = Ethernet(2, 0.125)
        flat, own = (way(HOST, slow, 1 << 30, name).time_us for name in ("flat ring", "hierarchy"))
        assert flat / own == pytest.approx((2 * 7 / 8) / (2 * 1 / 2), rel=0.02)

    def test_measured_with_ranks_that_share_cores_or_do_not(self) -> None:
        assert HOST.costs.measured.ranks == 2
        assert Host(4, 2).costs.measured.ranks == 4
        assert "with 2 ranks" in HOST.costs.source


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    model.add_arguments(parser)
    assert model.run(parser.parse_args(["--device", "cpu", *arguments])) == 0
    return capsys.readouterr().out


class TestCommand:
    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("-n", "4", "--hosts", "8", "--network-gbit", "25", "--inter-us", "40")
        lines = run(capsys, *arguments, "--sizes", "64K,64M").splitlines()
        assert lines[0].startswith("a host: 4 ranks on 4 cores, inside as ringkern's default")
        assert lines[1] == (
            "8 hosts, 32 ranks: 2.942 GB/s of data from each host to the others; Gloo, "
            "3 GB/s a rail, 40 us a step"
        )
        network = Ethernet(8, 25 / 8 * cpu.DATA_SHARE, 40.0)
        for line, size in zip(lines[4:6], (64 * K, 64 * M)):
            own = way(HOST, network, size, "hierarchy")
            flat, tree = (
                f"{way(HOST, network, size, w).time_us:.1f}" for w in ("flat ring", "flat tree")
            )
            found = line.replace("*", "").split()
            assert found[1:6] == [
                flat, tree, f"{own.time_us:.1f}", str(own.rails), str(own.pieces),
            ]  # fmt: skip
            assert line.count("*") == 1

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = json.loads(run(capsys, "-n", "4", "--hosts", "2", "--sizes", "1M", "--json"))
        assert (data["device"], data["ranks"], data["cores"]) == ("cpu", 4, 4)
        assert data["network"] == {
            "hosts": 2,
            "host_gb_s": pytest.approx(10 / 8 * 1448 / 1538),
            "step_us": 30.0,
        }
        expected = estimates(HOST, Ethernet(2), M)
        assert [e["time_us"] for e in data["rows"][0]["estimates"]] == [e.time_us for e in expected]
        assert data["faster"]["engine alone"] == [[8, None]]

    def test_a_network_by_rank(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = json.loads(run(capsys, "-n", "4", "--hosts", "2", "--inter-gb-s", "2", "--json"))
        assert data["network"]["host_gb_s"] == 8.0

    def test_one_host(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = run(capsys, "--sizes", "8K")
        assert "rails" not in text
        assert "python -m ringkern explain" in text
        data = json.loads(run(capsys, "--sizes", "8K", "--json"))
        assert data["network"] is None
        assert "faster" not in data

    def test_shared_cores(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "a host: 2 ranks on 1 core, " in run(capsys, "-n", "2", "--cores", "1")


class TestSweep:
    def test_what_is_said_of_each_number_of_hosts(self, capsys: pytest.CaptureFixture[str]) -> None:
        data = json.loads(run(capsys, "-n", "4", "--sweep", "--json"))
        assert [row["hosts"] for row in data["sweep"]] == list(sweep.HOSTS)
        for row in data["sweep"]:
            assert row["faster"]["engine alone"] == row["faster"]["flat ring"]
            for over in ("flat ring", "flat tree"):
                for nbytes in sweep.SIZES[::5]:
                    network = Ethernet(row["hosts"])
                    own = way(HOST, network, nbytes, "hierarchy").time_us
                    other = way(HOST, network, nbytes, over).time_us
                    if any(
                        low <= nbytes and (high is None or nbytes <= high)
                        for low, high in row["faster"][over]
                    ):
                        assert own <= sweep.NEARLY * other
                    else:
                        assert own >= other

    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "-n", "4", "--sweep").splitlines()
        first = next(i for i, line in enumerate(lines) if line.split()[:2] == ["hosts", "ranks"])
        rows = [line.split()[:2] for line in lines[first + 1 : first + 1 + len(sweep.HOSTS)]]
        assert rows == [[str(hosts), str(hosts * 4)] for hosts in sweep.HOSTS]
        assert sweep.HOSTS[0] == 2
        assert sweep.HOSTS[-1] == 1000

    @pytest.mark.parametrize(
        ("first", "last", "text"),
        [
            (0, len(sweep.SIZES), "always"),
            (0, 0, "never"),
        ],
    )
    def test_ranges(self, first: int, last: int, text: str) -> None:
        ratios = [0.9 if first <= i < last else 1.1 for i in range(len(sweep.SIZES))]
        assert sweep.say(sweep.ranges(ratios)) == text

    def test_several_ranges(self) -> None:
        """One gap is bridged, in which hardly anything is lost; equal is not faster."""
        ratios = [1.1] * len(sweep.SIZES)
        ratios[0:3] = 0.9, 1.02, 0.9
        ratios[4:7] = 0.9, 1.0, 1.04
        ratios[40:] = [0.9] * (len(ratios) - 40)
        assert sweep.ranges(ratios) == [(8, 11), (16, 16), (8 * K, None)]
        assert sweep.say(sweep.ranges(ratios)) == "8 to 11, at 16, from 8K on"
