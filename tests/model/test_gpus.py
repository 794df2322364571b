"""Predictions for machines that are not here: the formulas by hand, and what is printed of them."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ringkern.choose import topology
from ringkern.tools import model
from ringkern.tools.model import Network, Node, constants, estimates, node_of
from ringkern.units import parse_size, size_text

K, M = 1 << 10, 1 << 20
SIZES = [8 << (2 * i) for i in range(14)]
SOME_SIZES = [8, M, 512 * M]


def h100(ranks: int, links_gb_s: float = 360.0) -> Node:
    return Node("test", ranks, "Hopper", "NVLink", links_gb_s, "GenuineIntel")


def by_protocol(node: Node, nbytes: int) -> dict[str, float]:
    return {e.protocol: e.time_us for e in estimates(node, None, nbytes)}


def way(node: Node, network: Network, nbytes: float, name: str) -> model.Estimate:
    """The fastest of a way."""
    return next(e for e in estimates(node, network, nbytes) if e.way == name)


# NCCL's model for H100 with 360 GB/s, worked out from its constants by hand: microseconds of LL,
# LL128 and Simple, for 2, 4 and 8 ranks.
BY_HAND = {
    8 * K: [(7.9, 17.8, 15.2), (10.3, 25.4, 28.8), (15.1, 40.6, 56.0)],
    64 * K: [(8.3, 18.0, 15.4), (10.9, 25.7, 29.1), (15.8, 40.9, 56.3)],
    M: [(15.2, 21.0, 18.1), (21.4, 30.1, 33.2), (28.0, 46.1, 61.1)],
    16 * M: [(126.8, 68.5, 61.8), (188.7, 101.4, 98.7), (223, 129, 138)],
    256 * M: [(1912, 828, 761), (2866, 1241, 1147), (3347, 1459, 1361)],
}


class TestOneNode:
    @pytest.mark.parametrize("nbytes", BY_HAND)
    def test_as_worked_out_by_hand(self, nbytes: int) -> None:
        for ranks, times in zip((2, 4, 8), BY_HAND[nbytes]):
            found = by_protocol(h100(ranks), nbytes)
            for protocol, time in zip(constants.PROTOCOLS, times):
                last_digit = 0.5 if isinstance(time, int) else 0.06
                assert found[protocol] == pytest.approx(time, rel=0, abs=last_digit)

    @pytest.mark.parametrize(
        ("ranks", "before", "after", "megabytes"),
        [(8, "ll", "ll128", 3.6), (8, "ll128", "simple", 36), (2, "ll", "simple", 1.7)],
    )
    def test_where_the_next_protocol_becomes_faster(
        self, ranks: int, before: str, after: str, megabytes: float
    ) -> None:
        for factor, fastest in ((0.95, before), (1.05, after)):
            nbytes = int(megabytes * 1e6 * factor)
            assert estimates(h100(ranks), None, nbytes)[0].protocol == fastest

    def test_larger_takes_longer(self) -> None:
        for smaller, larger in itertools.pairwise(SIZES):
            few, more = by_protocol(h100(8), smaller), by_protocol(h100(8), larger)
            assert all(few[p] < more[p] for p in constants.PROTOCOLS)

    @pytest.mark.parametrize("nbytes", SOME_SIZES)
    def test_more_ranks_take_longer(self, nbytes: int) -> None:
        few, more = by_protocol(h100(4), nbytes), by_protocol(h100(8), nbytes)
        assert all(few[p] < more[p] for p in constants.PROTOCOLS)

    def test_never_faster_than_the_links(self) -> None:
        for nbytes in SIZES:
            assert all(e.bus_gb_s < 360.0 for e in estimates(h100(8), None, nbytes))
        assert estimates(h100(8), None, 1 << 34)[0].bus_gb_s == pytest.approx(360.0, rel=0.01)

    def test_latency_is_what_no_bytes_take(self) -> None:
        for estimate in estimates(h100(8), None, M):
            base = constants.BASE_US[estimate.protocol]
            hops = 14 * constants.HOP_US["NVLink"][estimate.protocol]
            assert estimate.latency_us == pytest.approx(base + hops)

    def test_no_ll128_over_pcie(self) -> None:
        node = Node("test", 4, "Ampere", "PCIe", 24.0)
        assert set(by_protocol(node, M)) == {"ll", "simple"}
        # 6.6 + 6 hops of 1.0 us, and 1.5 M bytes at half of 24 GB/s.
        assert by_protocol(node, M)["ll"] == pytest.approx(12.6 + 1.5 * M / 12e3)

    def test_channels_limit_ll128(self) -> None:
        assert constants.data_gb_s("ll128", "Ampere", 240.0, channels=4) == 80.0
        assert constants.data_gb_s("ll128", "Ampere", 240.0) == pytest.approx(0.92 * 240.0)


class TestManyNodes:
    def test_flat_ring_by_hand(self) -> None:
        """16 nodes of 8: 254 hops, 32 of them between nodes; a post takes 1 us for LL."""
        flat = way(h100(8), Network(16, 50.0), 0.0 + K, "flat ring")
        assert flat.protocol == "ll"
        assert flat.latency_us == pytest.approx(6.6 + 32 * 2.7 + 222 * 1.0)
        # LL between more than two nodes: 20.4 GB/s.
        assert flat.time_us == pytest.approx(flat.latency_us + K * 2 * 127 / 128 / 20.4e3)

    def test_flat_ring_is_as_slow_as_its_slowest_part(self) -> None:
        large = 1 << 36
        inside = way(h100(8), Network(2, 50.0), large, "flat ring").bus_gb_s
        assert inside == pytest.approx(360.0, rel=0.01)
        between = way(h100(8), Network(2, 25.0), large, "flat ring").bus_gb_s
        assert between == pytest.approx(200.0, rel=0.01)

    def test_flat_tree_by_hand(self) -> None:
        """1,000 nodes of 8: NCCL counts nine levels, and seven ranks of a chain below each."""
        tree = way(h100(8), Network(1000, 50.0), 64, "flat tree")
        assert tree.protocol == "ll"
        assert tree.latency_us == pytest.approx(6.8 + 2 * (7 * 0.6 + 9 * 5.0))
        # LL between more than two nodes: 20.4 GB/s, of 400 x 0.92 / 3.8; up and down.
        assert tree.time_us == pytest.approx(tree.latency_us + 2 * 64 / 20.4e3)

    def test_trees_reach_less_at_some_sizes(self) -> None:
        """Simple at 1 MB reaches a half, LL128 at 256 MB all, between two sizes the mean."""
        half = constants.tree_gb_s("simple", "GenuineIntel", 4, 400.0, M)
        assert half == pytest.approx(400.0 * 0.92 * 0.5)
        whole = constants.tree_gb_s("ll128", "GenuineIntel", 4, 400.0, 256 * M)
        assert whole == pytest.approx(400.0 * 0.92 * 120 / 128)
        between = constants.tree_gb_s("simple", "GenuineIntel", 4, 400.0, 4 * M * 2**0.5)
        assert between == pytest.approx(400.0 * 0.92 * 0.75)

    @pytest.mark.parametrize("protocol", constants.PROTOCOLS)
    def test_a_larger_tree_takes_longer(self, protocol: str) -> None:
        sizes = [8 * 2 ** (i / 4) for i in range(120)]
        times = [n / constants.tree_gb_s(protocol, "GenuineIntel", 4, 400.0, n) for n in sizes]
        assert times == sorted(times)

    def test_hierarchy_by_hand(self) -> None:
        """1,000 nodes of 8: two halves of 7 hops inside, nine levels of a tree between."""
        found = way(h100(8), Network(1000, 50.0), 8 * K, "hierarchy")
        assert found.protocol == "ll + tree ll"
        assert (found.rails, found.pieces) == (8, 1)
        latency = 2 * (6.6 + 7 * 0.6) + 6.8 + 2 * 9 * 5.0
        assert found.latency_us == pytest.approx(latency)
        inside = 2 * 7 / 8 * 8 * K / 141e3
        # Eight rails share the 20.4 GB/s; of 1 KB a tree reaches nine tenths.
        between = 2 * K / (0.9 * 20.4e3 / 8)
        assert found.time_us == pytest.approx(latency + inside + between)

    @pytest.mark.parametrize("nbytes", [8, M])
    def test_hierarchy_is_faster_than_the_ring_for_small_tensors(self, nbytes: int) -> None:
        own = way(h100(8), Network(1000, 50.0), nbytes, "hierarchy")
        assert 3 * own.time_us < way(h100(8), Network(1000, 50.0), nbytes, "flat ring").time_us

    @pytest.mark.parametrize("nodes", [2, 1000])
    @pytest.mark.parametrize("nbytes", SOME_SIZES)
    def test_the_fastest_comes_first(self, nodes: int, nbytes: int) -> None:
        found = estimates(h100(8), Network(nodes, 50.0), nbytes)
        assert [e.time_us for e in found] == sorted(e.time_us for e in found)
        assert {e.way for e in found} == set(model.WAYS)

    def test_no_ll128_where_gpus_use_pcie(self) -> None:
        node = Node("test", 4, "Ampere", "PCIe", 24.0)
        found = [e for i in SIZES for e in estimates(node, Network(16, 25.0), i)]
        assert not [e for e in found if "ll128" in e.protocol]

    def test_pieces_hide_all_but_the_slowest_phase(self) -> None:
        """And one piece of it: 16 pieces, with the network ten times as slow as NVLinks."""
        large = 1 << 36
        found = way(h100(8), Network(4, 5.0), large, "hierarchy")
        assert found.pieces == 16
        between = large / 8 * 2 * 3 / 4 / 5e3
        inside = large * 2 * 7 / 8 / 360e3 / 16
        assert found.time_us == pytest.approx(between + inside, rel=0.001)

    @pytest.mark.parametrize("nbytes", SOME_SIZES)
    def test_one_rank_a_node_is_the_engine_alone(self, nbytes: int) -> None:
        node = Node("test", 1, "Hopper", "NVLink", math.inf, "GenuineIntel")
        found = estimates(node, Network(64, 50.0), nbytes)
        own = next(e for e in found if e.way == "hierarchy")
        alone = min(e.time_us for e in found if e.way != "hierarchy")
        assert own.time_us == pytest.approx(alone)
        assert (own.rails, own.pieces, own.protocol.count("+")) == (1, 1, 0)

    @pytest.mark.parametrize("nodes", [2, 1000])
    def test_twice_as_much_takes_longer(self, nodes: int) -> None:
        sizes = [8 << i for i in range(30)]
        for name in model.WAYS:
            times = [way(h100(8), Network(nodes, 50.0), size, name).time_us for size in sizes]
            assert times == sorted(times)

    @pytest.mark.parametrize("nbytes", SOME_SIZES)
    def test_more_nodes_take_longer(self, nbytes: int) -> None:
        for name in model.WAYS:
            times = [
                way(h100(8), Network(nodes, 50.0), nbytes, name).time_us
                for nodes in (4, 8, 64, 512, 1024)
            ]
            assert times == sorted(times)

    def test_a_slower_network(self) -> None:
        slow = Network(16, 50.0, dict.fromkeys(constants.PROTOCOLS, 10.0))
        for name in model.WAYS:
            later = way(h100(8), slow, 8, name).time_us
            assert later > way(h100(8), Network(16, 50.0), 8, name).time_us


class TestNode:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("dgx1-v100", (8, "Volta", "NVLink", 120.0)),
            ("dgx-a100", (8, "Ampere", "NVLink", 240.0)),
            ("dgx-h100", (8, "Hopper", "NVLink", 370.8)),
            ("pcie8-2sockets", (8, "Ampere", "PCIe", 10.0)),
            ("nvlink-pairs4", (4, "Ampere", "PCIe", 48.0)),
        ],
    )
    def test_recorded(self, name: str, expected: tuple[int, str, str, float]) -> None:
        node = node_of(topology.recorded(name))
        found = (node.ranks, node.arch, node.link, pytest.approx(node.links_gb_s))
        assert found == expected

    def test_some_of_the_gpus(self) -> None:
        """Two GPUs of a DGX-1 that one NVLink joins."""
        assert node_of(topology.recorded("dgx1-v100"), 2).links_gb_s == pytest.approx(20.0)

    @pytest.mark.parametrize("ranks", [0, 9])
    def test_more_ranks_than_gpus(self, ranks: int) -> None:
        with pytest.raises(ValueError, match=f"{ranks} ranks on dgx-h100, which has 8 GPUs"):
            node_of(topology.recorded("dgx-h100"), ranks)

    def test_unknown_gpus(self) -> None:
        with pytest.raises(ValueError, match="give --arch, of Volta, Ampere"):
            constants.architecture(None)
        found = [constants.architecture(cc) for cc in (70, 75, 80, 89, 90, 100, 120)]
        assert found == ["Volta"] * 2 + ["Ampere"] * 2 + ["Hopper"] + ["Blackwell"] * 2

    def test_ranks_on_one_gpu_are_as_pcie(self) -> None:
        assert constants.link_of({"LOC"}) == constants.link_of({"NVL", "PHB"}) == "PCIe"


class TestPublished:
    def test_error_by_hand(self) -> None:
        """8 KB on 8 x H200: 6.6 + 14 x 0.6 us, and 8 K x 14/8 bytes at 141 GB/s, for 17.23."""
        row = next(
            r for r in model.PUBLISHED if r.system == "8 x H200, graphs" and r.nbytes == 8 * K
        )
        assert model.error_of(row) == pytest.approx((15.0 + 8 * K * 1.75 / 141e3) / 17.23 - 1)

    def test_a_bandwidth_becomes_a_time(self) -> None:
        row = next(r for r in model.PUBLISHED if r.source == "NVIDIA/nccl#986")
        assert row.nbytes / row.time_us * 1.75 == pytest.approx(350e3)

    def test_machines_and_sources_are_named(self) -> None:
        for row in model.PUBLISHED:
            assert row.machine in topology.recorded_names()
            assert row.source
            assert row.time_us > 0

    def test_median_is_of_rings_alone(self) -> None:
        rows = tuple(row for row in model.PUBLISHED if row.ring)
        assert len(rows) < len(model.PUBLISHED)
        assert model.median_error() == model.median_error(rows)
        errors = sorted(abs(model.error_of(row)) for row in rows)
        assert errors[(len(errors) - 1) // 2] <= model.median_error() <= errors[len(errors) // 2]

    def test_half_of_the_predictions_are_good(self) -> None:
        assert model.median_error() < 0.15


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    model.add_arguments(parser)
    assert model.run(parser.parse_args(arguments)) == 0
    return capsys.readouterr().out


def no_constant(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


class TestCommand:
    def test_one_node(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--topology", "dgx-h100", "--sizes", "8K,256M").splitlines()
        assert lines[0] == "dgx-h100: 8 ranks, Hopper, NVLink"
        assert lines[1].endswith("switch NVLink: 0 1 2 3 4 5 6 7")
        assert lines[3].split()[:4] == ["size", "ll", "ll128", "simple"]
        assert lines[4].split()[:2] == ["8K", "15.1*"]
        assert "ring, simple" in lines[5]

    def test_many_nodes_with_the_nics_of_the_machine(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = run(capsys, "--nodes", "1000", "--sizes", "8K")
        assert "1000 hosts, 8000 ranks: 50 GB/s from each rank" in text
        row = next(line for line in text.splitlines() if line.startswith("    8K"))
        assert "flat tree, ll" in row
        assert row.count("*") == 1
        assert "The hierarchy is faster than the flat ring: always." in text

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("--nodes", "16", "--inter-gb-s", "25", "--inter-us", "5", "--sizes", "1M")
        text = run(capsys, *arguments, "--json")
        data = json.loads(text, parse_constant=no_constant)
        assert data["network"] == {
            "hosts": 16,
            "rank_gb_s": 25.0,
            "hop_us": pytest.approx({"ll": 5.0, "ll128": 6.3, "simple": 16.3}),
        }
        assert data["rings"]["orders"] == [list(range(8))]
        (row,) = data["rows"]
        network = Network(16, 25.0, data["network"]["hop_us"])
        expected = estimates(node_of(topology.recorded("dgx-h100")), network, M)
        assert [e["time_us"] for e in row["estimates"]] == [e.time_us for e in expected]

    def test_a_network_of_the_whole_host(self, capsys: pytest.CaptureFixture[str]) -> None:
        """800 Gbit/s for four ranks."""
        arguments = ("--hosts", "2", "-n", "4", "--network-gbit", "800", "--sizes", "1M")
        data = json.loads(run(capsys, *arguments, "--json"), parse_constant=no_constant)
        assert data["network"]["rank_gb_s"] == 25.0

    def test_json_of_one_rank(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = run(capsys, "--ranks", "1", "--sizes", "8", "--json")
        data = json.loads(text, parse_constant=no_constant)
        assert data["rings"]["gb_s"] is None

    def test_a_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        file = resources.files(topology) / "machines" / "dgx-a100.xml"
        text = run(capsys, "--topology", str(file), "--sizes", "1M")
        assert "8 ranks, Ampere, NVLink" in text
        assert "1 of 240 GB/s" in text

    def test_another_architecture(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert ", Blackwell, " in run(capsys, "--arch", "Blackwell", "--sizes", "8")

    def test_published(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = run(capsys, "--published")
        assert len(text.splitlines()) == len(model.PUBLISHED) + 5
        assert f"Median error of the other 42: {model.median_error():.0%}." in text
        data = json.loads(run(capsys, "--published", "--json"), parse_constant=no_constant)
        assert [row["error"] for row in data["rows"]] == [
            model.error_of(row) for row in model.PUBLISHED
        ]

    @pytest.mark.parametrize("nodes", ["1", "16"])
    def test_plot(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, nodes: str) -> None:
        pytest.importorskip("matplotlib")
        file = tmp_path / "curves.png"
        run(capsys, "--nodes", nodes, "--plot", str(file))
        assert file.read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--topology", "dgx-9"], "--topology dgx-9: there is no such file; recorded"),
            (["--nodes", "0"], "--hosts 0: give a whole number from 1 on"),
            (["--topology", "dgx1-v100", "--nodes", "2"], "has no known NICs: give --inter-gb-s"),
            (["--nodes", "2", "--inter-gb-s", "-1"], "--inter-gb-s -1.0: give a number of GB/s"),
            (["--hosts", "2", "--network-gbit", "0"], "--network-gbit 0.0: give a number of Gbit"),
            (["--network-gbit", "1", "--inter-gb-s", "1"], "say the same: give one of them"),
            (["--device", "cpu", "--arch", "Hopper"], "--arch is of GPUs: leave it out"),
            (["--cores", "8"], "--cores is of hosts without GPUs: leave it out"),
            (["--sweep", "--sizes", "8"], "--sweep looks at all sizes, and draws nothing"),
            (["--sizes", "8,many"], "--sizes: 'many' is no size"),
            (["--sizes", "0"], "--sizes 0: give sizes above 0"),
        ],
    )
    def test_arguments_that_do_not_fit(self, arguments: list[str], text: str) -> None:
        parser = argparse.ArgumentParser()
        model.add_arguments(parser)
        with pytest.raises(ValueError, match=text):
            model.run(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0"), (1500, "1500"), (K, "1K"), (M << 10, "1G")],
)
def test_size_text(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
    assert parse_size(text) == nbytes
