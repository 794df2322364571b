"""The search for rings: it finds what trying all orders finds, and what NCCL finds on machines."""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringkern.choose import rings
from ringkern.choose.fabric import Edge, Fabric
from ringkern.choose.rings import packing
from ringkern.choose.rings.hops import Hops
from ringkern.choose.rings.laying import Budget, GaveUp, Refuted, Search
from ringkern.choose.rings.packing import pack

Pair = tuple[int, int]


def of_pairs(size: int, gb_s: dict[Pair, float]) -> Fabric:
    """Returns a fabric in which every pair has a link of its own."""
    edges = tuple(Edge(f"gpu{u}>gpu{v}", speed) for (u, v), speed in gb_s.items())
    routes = {pair: (i,) for i, pair in enumerate(gb_s)}
    return Fabric(size, edges, routes, dict.fromkeys(routes, "NVL"))


def nvlinks(size: int, lanes: dict[Pair, int], lane: float) -> Fabric:
    """Returns GPUs linked with this many lanes for each pair, each of `lane` GB/s in each
    direction.
    """
    return of_pairs(size, {p: n * lane for (u, v), n in lanes.items() for p in ((u, v), (v, u))})


def nvswitch(size: int, gb_s: float) -> Fabric:
    edges = [Edge(f"gpu{i}>switch", gb_s) for i in range(size)]
    edges += [Edge(f"switch>gpu{i}", gb_s) for i in range(size)]
    routes = {(u, v): (u, size + v) for u in range(size) for v in range(size) if u != v}
    return Fabric(size, tuple(edges), routes, dict.fromkeys(routes, "NVS"))


def tree(above: dict[str, tuple[str, float]], ranks: list[str]) -> Fabric:
    """Returns a PCIe tree: `above` has the parent of a device and its link's GB/s, each way."""
    edges, up, down = [], {}, {}
    for device, (parent, gb_s) in above.items():
        up[device], down[device] = len(edges), len(edges) + 1
        edges += [Edge(f"{device}>{parent}", gb_s), Edge(f"{parent}>{device}", gb_s)]

    def path(device: str) -> list[str]:
        return [device, *(path(above[device][0]) if device in above else [])]

    routes = {}
    for u, v in itertools.permutations(range(len(ranks)), 2):
        there, back = path(ranks[u]), path(ranks[v])
        shared = set(there) & set(back)
        routes[u, v] = tuple(up[d] for d in there if d not in shared) + tuple(
            down[d] for d in back if d not in shared
        )
    return Fabric(len(ranks), tuple(edges), routes, dict.fromkeys(routes, "SYS"))


def pcie(ranks: list[int], sockets: int, gpus: int, between: float = 10.0) -> Fabric:
    """So many GPUs below sockets, two below each switch; `ranks` has the GPU of each."""
    above = {f"gpu{i}": (f"switch{i // 2}", 24.0) for i in range(gpus)}
    for i in range(gpus // 2):
        above[f"switch{i}"] = (f"cpu{i * sockets * 2 // gpus}", 24.0)
    if sockets > 1:
        above |= {f"cpu{i}": ("interconnect", between) for i in range(sockets)}
    return tree(above, [f"gpu{i}" for i in ranks])


# Lanes of a DGX-1 with V100, from the topology that NVIDIA/nccl#671 shows for its first four GPUs,
# and NVIDIA's white paper on the DGX-1 for all eight.
DGX1 = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
ALL_PAIRS_4 = dict.fromkeys(itertools.combinations(range(4), 2), 1)


def slowest(fabric: Fabric, orders: tuple[rings.Order, ...]) -> float:
    """Returns the bandwidth of each of these rings, counted independently."""
    crossed = [0] * len(fabric.edges)
    for order in orders:
        for hop in zip(order, order[1:] + order[:1]):
            for edge in fabric.routes[hop]:
                crossed[edge] += 1
    speeds = [edge.gb_s / n for edge, n in zip(fabric.edges, crossed) if n]
    return min(speeds, default=math.inf)


def check(fabric: Fabric, found: rings.Rings) -> None:
    """Checks the invariants of any rings."""
    for order in found.orders:
        assert order[0] == 0
        assert sorted(order) == list(range(fabric.size))
    assert found.gb_s == pytest.approx(slowest(fabric, found.orders))
    assert found.total_gb_s == pytest.approx(found.gb_s * len(found.orders))
    assert found.total_gb_s <= found.bound_gb_s * (1 + 1e-9)
    if found.bottleneck:
        assert found.bottleneck in {edge.name for edge in fabric.edges}
    if found.exact:
        assert found.bound_gb_s == found.total_gb_s


# Rings to try at most for each number of ranks, so that all choices are some thousands.
MOST = {2: 4, 3: 6, 4: 4, 5: 2, 6: 1}
SPEEDS = [1.0, 2.0, 3.0, 5.0, 12.5, 22.0]


@st.composite
def fabrics_of_pairs(draw: st.DrawFn) -> Fabric:
    size = draw(st.integers(2, 6))
    pairs = list(itertools.permutations(range(size), 2))
    speeds = draw(
        st.lists(st.sampled_from([0.0, *SPEEDS]), min_size=len(pairs), max_size=len(pairs))
    )
    return of_pairs(size, {pair: speed for pair, speed in zip(pairs, speeds) if speed})


@st.composite
def fabrics_that_share(draw: st.DrawFn) -> Fabric:
    """Each route crosses one to three of a few edges: any structure, most of them none."""
    size = draw(st.integers(2, 6))
    speeds = draw(st.lists(st.sampled_from(SPEEDS), min_size=1, max_size=8))
    edges = tuple(Edge(f"edge{i}", speed) for i, speed in enumerate(speeds))
    route = st.none() | st.lists(st.sampled_from(range(len(edges))), max_size=3, unique=True)
    pairs = list(itertools.permutations(range(size), 2))
    drawn = draw(st.lists(route, min_size=len(pairs), max_size=len(pairs)))
    routes = {pair: tuple(way) for pair, way in zip(pairs, drawn) if way is not None}
    return Fabric(size, edges, routes, dict.fromkeys(routes, "PHB"))


def check_best(fabric: Fabric, most: int) -> None:
    orders = [
        (0, *rest)
        for rest in itertools.permutations(range(1, fabric.size))
        if all(hop in fabric.routes for hop in zip((0, *rest), (*rest, 0)))
    ]
    if not orders:
        with pytest.raises(ValueError, match="there is no ring through all"):
            rings.search(fabric, most_rings=most)
        return
    found = rings.search(fabric, most_rings=most)
    check(fabric, found)
    totals = [
        max(
            n * slowest(fabric, chosen)
            for chosen in itertools.combinations_with_replacement(orders, n)
        )
        for n in range(1, most + 1)
    ]
    assert found.total_gb_s == pytest.approx(max(totals))
    assert found.exact
    fewest = next(n for n, total in enumerate(totals, 1) if total == pytest.approx(max(totals)))
    assert len(found.orders) == fewest


class TestAgainstAllOrders:
    @settings(max_examples=200, deadline=None)
    @given(fabrics_of_pairs())
    def test_links_of_pairs(self, fabric: Fabric) -> None:
        check_best(fabric, MOST[fabric.size])

    @settings(max_examples=200, deadline=None)
    @given(fabrics_that_share())
    def test_links_that_hops_share(self, fabric: Fabric) -> None:
        check_best(fabric, MOST[fabric.size])

    @settings(max_examples=200, deadline=None)
    @given(fabrics_that_share() | fabrics_of_pairs())
    def test_where_laying_rings_takes_long(
        self, monkeypatch: pytest.MonkeyPatch, fabric: Fabric
    ) -> None:
        """Hops are given up after one step: all sets of ranks, and exchanges, have to find all."""
        monkeypatch.setattr(packing, "TRY_FIRST", 1)
        check_best(fabric, MOST[fabric.size])


def random_shared_fabric(draws: random.Random) -> Fabric:
    """Routes that cross up to three of two to ten edges, all at random: much is full at once."""
    size = draws.randint(3, 7)
    edges = tuple(Edge(f"edge{i}", draws.choice(SPEEDS)) for i in range(draws.randint(2, 10)))
    routes = {
        pair: tuple(draws.sample(range(len(edges)), draws.randint(0, min(3, len(edges)))))
        for pair in itertools.permutations(range(size), 2)
    }
    return Fabric(size, edges, routes, dict.fromkeys(routes, "PHB"))


class TestPacking:
    def test_what_is_laid_fits(self) -> None:
        """Rings of a bandwidth do not cross an edge more often than it carries."""
        draws = random.Random(5)
        laid = 0
        for _ in range(400):
            fabric = random_shared_fabric(draws)
            gb_s = draws.choice(fabric.edges).gb_s / draws.randint(1, 6)
            count = draws.randint(1, 6)
            try:
                orders = pack(Hops(fabric), count, gb_s, Budget(3000))
            except (Refuted, GaveUp):
                continue
            assert len(orders) == count
            assert slowest(fabric, tuple(orders)) >= gb_s * (1 - 1e-9)
            laid += 1
        assert laid > 100

    def test_five_of_six_rings(self) -> None:
        """Where rings come with their reverses, one less is no harder to find."""
        orders = pack(Hops(nvlinks(8, DGX1, 20.0)), 5, 20.0, Budget(1000))
        assert len(orders) == 5

    @pytest.mark.parametrize("seed", range(2))
    def test_a_tree_takes_few_steps(self, seed: int) -> None:
        """16 GPUs below eight switches and two sockets."""
        ranks = list(range(16))
        random.Random(seed).shuffle(ranks)
        hops = Hops(pcie(ranks, 2, 16))
        budget = Budget(600)
        (order,) = pack(hops, 1, 10.0, budget)
        assert sorted(order) == list(range(16))
        assert len(pack(hops, 4, 2.5, budget)) == 4

    def test_ranks_that_are_cut_off_are_seen_at_once(self) -> None:
        """Close to the fastest ring there is; without that look ahead it takes over 600 steps."""
        search = Search(Hops(random_fabric(16, 2)), 1, 72.0, both_ways=False, salt=0)
        (order,) = search.run(Budget(300))
        assert slowest(random_fabric(16, 2), (order,)) >= 72.0

    def test_counting_refutes_without_a_step(self) -> None:
        """Two rings of 6 GB/s do not fit between sockets of 10 GB/s, nor seven on six lanes."""
        assert Hops(pcie(list(range(8)), 2, 8)).refuted(2, 6.0)
        assert not Hops(pcie(list(range(8)), 2, 8)).refuted(2, 5.0)
        assert Hops(nvlinks(8, DGX1, 20.0)).refuted(7, 20.0)
        assert not Hops(nvlinks(8, DGX1, 20.0)).refuted(6, 20.0)


class TestMachines:
    """Recorded machines; what NCCL does there stands in its own logs, in the issues named."""

    def test_dgx1_has_a_ring_a_lane(self) -> None:
        """Six lanes a GPU: no more than six rings can leave it, and six there are."""
        fabric = nvlinks(8, DGX1, 22.0)
        found = rings.search(fabric)
        check(fabric, found)
        assert (len(found.orders), found.gb_s, found.exact) == (6, 22.0, True)

    def test_dgx1_uses_both_directions(self) -> None:
        orders = rings.search(nvlinks(8, DGX1, 22.0)).orders
        assert sorted(orders) == sorted((order[0], *order[:0:-1]) for order in orders)

    def test_four_v100_all_linked(self) -> None:
        """NVIDIA/nccl#713, the first graph: 6 channels of 22 GB/s, in the six orders there are."""
        found = rings.search(nvlinks(4, dict.fromkeys(ALL_PAIRS_4, 2), 22.0))
        assert found.total_gb_s == pytest.approx(6 * 22.0)
        assert set(found.orders) == {(0, *rest) for rest in itertools.permutations((1, 2, 3))}

    @pytest.mark.parametrize(("size", "gb_s"), [(8, 252.0), (16, 132.0)])
    def test_nvswitch(self, size: int, gb_s: float) -> None:
        """NVIDIA/nccl-tests#100, 8 A100: all of NCCL's 24 channels are 0 1 2 3 4 5 6 7, NVL 252."""
        fabric = nvswitch(size, gb_s)
        found = rings.search(fabric)
        check(fabric, found)
        assert found.orders == (tuple(range(size)),)
        assert (found.total_gb_s, found.exact) == (gb_s, True)

    def test_two_gpus_on_two_sockets(self) -> None:
        """NVIDIA/nccl#1358: one channel of 10 GB/s, over the link between the CPUs."""
        fabric = tree(
            {
                "gpu0": ("cpu0", 24),
                "gpu1": ("cpu1", 24),
                "cpu0": ("link", 10),
                "cpu1": ("link", 10),
            },
            ["gpu0", "gpu1"],
        )
        found = rings.search(fabric)
        assert (found.orders, found.gb_s, found.exact) == (((0, 1),), 10.0, True)
        assert found.bottleneck in ("cpu0>link", "link>cpu1", "cpu1>link", "link>cpu0")

    @pytest.mark.parametrize("sockets", [1, 2])
    @pytest.mark.parametrize("seed", range(2))
    def test_pcie_in_any_order_of_ranks(self, sockets: int, seed: int) -> None:
        """No link of a tree is crossed more than once each way, however the ranks are numbered.

        NVIDIA/nccl-tests#307, 8 GPUs on two sockets: NCCL has one channel too, 0 1 2 3 4 5 6 7.
        """
        ranks = list(range(8))
        random.Random(seed).shuffle(ranks)
        fabric = pcie(ranks, sockets, 8)
        found = rings.search(fabric)
        check(fabric, found)
        assert (found.total_gb_s, found.exact) == (10.0 if sockets > 1 else 24.0, True)
        assert len(found.orders) == 1

    def test_nvlink_in_pairs(self) -> None:
        """GPUs linked two by two, and pairs joined by PCIe: only one hop of a pair uses PCIe."""
        fabric = pcie([0, 2, 1, 3], 2, 4)
        pairs = nvlinks(4, {(0, 2): 4, (1, 3): 4}, 14.0)
        first = len(fabric.edges)
        routes = fabric.routes | {p: (first + way[0],) for p, way in pairs.routes.items()}
        fabric = Fabric(4, fabric.edges + pairs.edges, routes, fabric.kinds | pairs.kinds)
        found = rings.search(fabric)
        check(fabric, found)
        assert found.exact
        for order in found.orders:
            kinds = [fabric.kinds[hop] for hop in zip(order, order[1:] + order[:1])]
            assert kinds.count("NVL") == 2
        assert found.total_gb_s == pytest.approx(10.0)

    def test_part_of_a_machine(self) -> None:
        """NVIDIA/nccl#300: of 8 GPUs in a cube mesh the four 2 3 7 6 have a ring of NVLinks."""
        chosen = (2, 3, 6, 7)
        lanes = {
            (chosen.index(u), chosen.index(v)): n
            for (u, v), n in DGX1.items()
            if u in chosen and v in chosen
        }
        found = rings.search(nvlinks(4, lanes, 20.0))
        assert set(found.orders) == {(0, 1, 3, 2), (0, 2, 3, 1)}
        assert (found.total_gb_s, found.exact) == (40.0, True)


class TestAnyFabric:
    def test_one_rank(self) -> None:
        found = rings.search(Fabric(1, (), {}, {}))
        assert (found.orders, found.total_gb_s, found.bottleneck) == (((0,),), math.inf, "")
        assert found.exact

    def test_two_ranks_share_a_link_of_each_direction(self) -> None:
        found = rings.search(of_pairs(2, {(0, 1): 30.0, (1, 0): 20.0}))
        assert (found.orders, found.total_gb_s) == (((0, 1),), 20.0)
        assert found.bottleneck == "gpu1>gpu0"

    def test_ranks_of_one_device(self) -> None:
        """Ranks 0 and 1 share a GPU: nothing is crossed between them."""
        fabric = nvswitch(4, 100.0)
        routes = fabric.routes | {(0, 1): (), (1, 0): ()}
        found = rings.search(Fabric(4, fabric.edges, routes, fabric.kinds | {(0, 1): "LOC"}))
        check(fabric, found)
        assert (found.total_gb_s, found.exact) == (100.0, True)

    def test_all_ranks_on_one_device(self) -> None:
        routes: dict[Pair, tuple[int, ...]] = dict.fromkeys(itertools.permutations(range(5), 2), ())
        found = rings.search(Fabric(5, (), routes, dict.fromkeys(routes, "LOC")))
        assert (found.orders, found.total_gb_s) == (((0, 1, 2, 3, 4),), math.inf)

    def test_a_ring_that_crosses_nothing_is_found(self) -> None:
        """One of two rings crosses no edge, and nothing limits it."""
        ways: dict[Pair, tuple[int, ...]] = dict.fromkeys(itertools.permutations(range(3), 2), ())
        ways |= {(0, 1): (0,)}
        found = rings.search(Fabric(3, (Edge("slow", 1.0),), ways, {}))
        assert (found.orders, found.total_gb_s, found.exact) == (((0, 2, 1),), math.inf, True)

    def test_a_pair_without_a_way_is_gone_round(self) -> None:
        fabric = nvswitch(4, 50.0)
        routes = {pair: way for pair, way in fabric.routes.items() if set(pair) != {0, 1}}
        found = rings.search(Fabric(4, fabric.edges, routes, fabric.kinds))
        assert found.total_gb_s == 50.0
        assert all(order[2] == 1 for order in found.orders)

    def test_no_ring_names_a_pair(self) -> None:
        fabric = nvswitch(4, 50.0)
        routes = {pair: way for pair, way in fabric.routes.items() if pair[0] != 2}
        with pytest.raises(ValueError, match="no ring through all 4 ranks: rank 2 has no way to"):
            rings.search(Fabric(4, fabric.edges, routes, fabric.kinds))

    def test_a_way_without_bandwidth_is_none(self) -> None:
        with pytest.raises(ValueError, match="rank 1 has no way to rank 0"):
            rings.search(of_pairs(2, {(0, 1): 5.0, (1, 0): 0.0}))

    def test_petersen_graph_has_no_ring(self) -> None:
        """Three links a rank, everything reached, and yet no ring: nothing but trying tells."""
        links = [(i, (i + 1) % 5) for i in range(5)]
        links += [(i, i + 5) for i in range(5)] + [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
        with pytest.raises(ValueError, match="there is no ring through all 10 ranks"):
            rings.search(nvlinks(10, dict.fromkeys(links, 1), 10.0))

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"most_rings": 0}, "most_rings=0: give a whole number from 1 on"),
            ({"time_limit_s": 0.0}, "time_limit_s=0.0: give a number of seconds above 0"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, float], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            rings.search(nvswitch(2, 1.0), **arguments)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a fabric of 0 ranks has no ring"):
            rings.search(Fabric(0, (), {}, {}))


def random_fabric(size: int, seed: int, share: float = 1.0) -> Fabric:
    """A link of its own for a share of all pairs, each with any bandwidth."""
    draws = random.Random(seed)
    pairs = itertools.permutations(range(size), 2)
    return of_pairs(size, {p: draws.uniform(1, 100) for p in pairs if draws.random() < share})


def best_single(fabric: Fabric) -> float:
    """Returns the fastest single ring: the slowest hop of the best path over every set of ranks."""
    full = 1 << (fabric.size - 1)
    best = [[0.0] * fabric.size for _ in range(full)]
    for v in range(1, fabric.size):
        best[1 << (v - 1)][v] = fabric.gb_s(0, v)
    for visited in range(full):
        for u in range(1, fabric.size):
            for v in range(1, fabric.size):
                if best[visited][u] and not visited >> (v - 1) & 1:
                    ends = best[visited | 1 << (v - 1)]
                    ends[v] = max(ends[v], min(best[visited][u], fabric.gb_s(u, v)))
    return max(min(best[full - 1][u], fabric.gb_s(u, 0)) for u in range(1, fabric.size))


class TestWithoutStructure:
    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("share", [0.6, 1.0])
    def test_single_ring(self, share: float, seed: int) -> None:
        fabric = random_fabric(10, seed, share)
        found = rings.search(fabric, most_rings=1)
        assert found.exact
        assert found.total_gb_s == pytest.approx(best_single(fabric))

    @pytest.mark.parametrize("seed", range(2))
    def test_16_ranks(self, seed: int) -> None:
        fabric = random_fabric(16, seed)
        single = rings.search(fabric, most_rings=1)
        assert single.exact
        found = rings.search(fabric)
        check(fabric, found)
        assert found.total_gb_s > 2 * single.total_gb_s
        assert found.exact

    def test_more_ranks_than_can_be_proven(self) -> None:
        """Many slow links and few steps: rings come all the same, with an honest bound."""
        fabric = random_fabric(24, 1, 0.3)
        found = rings.search(fabric, time_limit_s=0.01)
        check(fabric, found)
        more = rings.search(fabric, time_limit_s=2.0)
        check(fabric, more)
        assert found.total_gb_s <= more.total_gb_s <= found.bound_gb_s * (1 + 1e-9)

    def test_72_ranks_of_a_switch(self) -> None:
        found = rings.search(nvswitch(72, 700.0))
        assert (found.total_gb_s, found.exact) == (700.0, True)


class TestReproducible:
    def test_order_of_the_routes_does_not_matter(self) -> None:
        fabric = random_fabric(12, 3)
        turned = dict(reversed(fabric.routes.items()))
        found = rings.search(fabric).orders
        assert rings.search(Fabric(12, fabric.edges, turned, fabric.kinds)).orders == found

    def test_hashes_do_not_matter(self) -> None:
        program = (
            "from tests.topology.test_rings import random_fabric\n"
            "from ringkern.choose import rings\n"
            "print([rings.search(random_fabric(16, seed)).orders for seed in range(2)])"
        )
        outputs = {
            subprocess.run(
                [sys.executable, "-c", program],
                env=os.environ | {"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
            for seed in ("0", "1")
        }
        assert len(outputs) == 1
        assert "(0, " in outputs.pop()


class TestArrange:
    def speed(self, fabric: Fabric, orders: tuple[rings.Order, ...], channels: int) -> float:
        return slowest(fabric, tuple(orders[c % len(orders)] for c in range(channels))) * channels

    @pytest.mark.parametrize("channels", [6, 24])
    def test_whole_turns_carry_everything(self, channels: int) -> None:
        fabric = nvlinks(8, DGX1, 22.0)
        orders = rings.best_orders(fabric, channels)
        assert len(orders) == 6
        assert self.speed(fabric, orders, channels) == pytest.approx(132.0)

    @pytest.mark.parametrize("channels", [1, 4, 16])
    def test_other_numbers_carry_the_most_they_can(self, channels: int) -> None:
        fabric = nvlinks(8, DGX1, 22.0)
        orders = rings.best_orders(fabric, channels)
        assert 1 <= len(orders) <= min(channels, 8)
        speed = self.speed(fabric, orders, channels)
        for most in range(1, min(channels, 8) + 1):
            others = rings.search(fabric, most_rings=most).orders
            assert speed >= self.speed(fabric, others, channels) * (1 - 1e-9)

    def test_more_rings_are_worse_where_they_do_not_come_out_even(self) -> None:
        """Five rings on six channels: one ring carries twice what the others do."""
        fabric = random_fabric(5, 2)
        five = rings.search(fabric, most_rings=6).orders
        orders = rings.best_orders(fabric, 6)
        assert (len(five), len(orders)) == (5, 3)
        assert self.speed(fabric, orders, 6) > 1.5 * self.speed(fabric, five, 6)

    def test_a_switch_needs_one_order(self) -> None:
        assert rings.best_orders(nvswitch(8, 370.8), 16) == (tuple(range(8)),)

    def test_one_rank(self) -> None:
        assert rings.best_orders(Fabric(1, (), {}, {}), 4) == ((0,),)

    def test_no_channels(self) -> None:
        with pytest.raises(ValueError, match="channels=0: give a whole number from 1 on"):
            rings.best_orders(nvswitch(2, 1.0), 0)


class TestDescribe:
    def test_rings_and_what_limits_them(self) -> None:
        fabric = nvswitch(4, 240.0)
        text = rings.describe(rings.search(fabric), fabric)
        assert text == (
            "0 1 2 3  (NVS)\n"
            "1 ring of 240 GB/s: 240 GB/s together, limited by gpu0>switch\n"
            "more is impossible"
        )

    def test_a_bound_that_was_not_met(self) -> None:
        fabric = nvswitch(2, 10.0)
        open_end = rings.Rings(((0, 1),), 10.0, 10.0, 12.5, False, "gpu0>switch", 0.0)
        assert rings.describe(open_end, fabric).endswith("\nat most 12.5 GB/s possible")

    def test_nothing_limits_one_rank(self) -> None:
        fabric = Fabric(1, (), {}, {})
        text = rings.describe(rings.search(fabric), fabric)
        assert text == "0  (no hops)\nno link limits it"
