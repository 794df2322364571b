"""The cut of a call over several hosts by ringkern's inter-host costs, and the time of its pipeline
stages.
"""

from __future__ import annotations

import itertools
import random

import pytest

from ringkern._C import Stages
from ringkern.hosts.inter_host_cost import GLOO, GLOO_CROWDED, NCCL, InterHostCost
from ringkern.tools.model.estimate import pipelined_us

K, M = 1 << 10, 1 << 20
COSTS = [GLOO, GLOO_CROWDED, NCCL]
SIZES = [round(2 ** (i / 3)) for i in range(3 * 4, 3 * 36)]


def cut(
    nbytes: int, hosts: int, ranks: int, inter_host_cost: InterHostCost, most_ranks: int = 0
) -> tuple[int, int]:
    """Rails and pieces; ``most_ranks``: of the largest host, where it has more than ``ranks``."""
    made = Stages(nbytes, 1, ranks, hosts, max(ranks, most_ranks) > 1, inter_host_cost)
    return made.rails, made.long_stages


class TestCut:
    @pytest.mark.parametrize(
        ("nbytes", "hosts", "ranks", "expected"),
        [
            (6 * M - 1, 2, 2, (1, 1)),
            (6 * M, 2, 2, (2, 1)),
            (8 * M, 2, 2, (2, 2)),
            (64 * M, 2, 2, (2, 5)),
            (12 * M - 1, 3, 2, (2, 1)),
            (12 * M, 3, 2, (2, 2)),
            (1 << 36, 2, 2, (2, 16)),
            (1 << 34, 1000, 8, (8, 4)),
        ],
    )
    def test_gloo_on_shared_cores(
        self, nbytes: int, hosts: int, ranks: int, expected: tuple[int, int]
    ) -> None:
        assert cut(nbytes, hosts, ranks, GLOO_CROWDED) == expected

    @pytest.mark.parametrize(
        ("nbytes", "hosts", "ranks", "expected"),
        [
            (64 * K - 1, 2, 2, (1, 1)),
            (64 * K, 2, 2, (2, 1)),
            (4 * M - 1, 2, 2, (2, 1)),
            (4 * M, 2, 2, (2, 2)),
            (16 * M, 8, 8, (8, 2)),
        ],
    )
    def test_gloo_with_a_core_for_each_rank(
        self, nbytes: int, hosts: int, ranks: int, expected: tuple[int, int]
    ) -> None:
        assert cut(nbytes, hosts, ranks, GLOO) == expected

    @pytest.mark.parametrize(
        ("nbytes", "hosts", "pieces"),
        [(24 * M - 1, 2, 1), (24 * M, 2, 2), (24 * M, 3, 2), (24 * M, 4, 1), (120 * M, 1000, 2)],
    )
    def test_nccl_has_trees(self, nbytes: int, hosts: int, pieces: int) -> None:
        """Its steps are the doublings, and the start of a call: 2 for 2 hosts, 10 for 1,000."""
        assert cut(nbytes, hosts, 8, NCCL) == (8, pieces)

    def test_what_cannot_be_cut(self) -> None:
        good = {"count": 8, "element_bytes": 4, "rails": 2, "hosts": 2, "inside": True}
        for name, bad in (("count", -1), ("element_bytes", 9), ("rails", 0), ("hosts", 1)):
            with pytest.raises(ValueError, match=f"{name} must"):
                Stages(**{**good, name: bad}, inter_host_cost=GLOO)
        with pytest.raises(ValueError, match="stage_bytes of 1 or more"):
            Stages(**good, inter_host_cost=(0, 0, False))

    @pytest.mark.parametrize("inter_host_cost", COSTS)
    def test_one_rank_a_host_has_nothing_to_hide(self, inter_host_cost: InterHostCost) -> None:
        assert {cut(size, 4, 1, inter_host_cost) for size in SIZES} == {(1, 1)}

    def test_uneven_hosts_have_something_to_hide(self) -> None:
        assert cut(64 * M, 2, 1, GLOO, most_ranks=2) == (1, 8)
        assert cut(64 * M, 2, 1, GLOO, most_ranks=1) == (1, 1)

    @pytest.mark.parametrize("inter_host_cost", COSTS)
    @pytest.mark.parametrize("hosts", [2, 1000])
    def test_more_bytes_more_of_both(self, inter_host_cost: InterHostCost, hosts: int) -> None:
        found = [cut(size, hosts, 4, inter_host_cost) for size in SIZES]
        for fewer, more in itertools.pairwise(found):
            assert fewer[0] <= more[0]
            assert fewer[1] <= more[1]
        assert {rails for rails, _ in found} <= {1, 4}
        assert {pieces for _, pieces in found} <= {*range(1, Stages.most + 1)}

    @pytest.mark.parametrize("inter_host_cost", COSTS)
    def test_more_hosts_fewer_pieces(self, inter_host_cost: InterHostCost) -> None:
        """Each piece costs the latency of all of them."""
        for nbytes in SIZES:
            found = [cut(nbytes, hosts, 4, inter_host_cost)[1] for hosts in (2, 3, 5, 9, 17, 1000)]
            assert found == sorted(found, reverse=True), nbytes

    @pytest.mark.parametrize("inter_host_cost", COSTS)
    def test_never_far_from_the_best(self, inter_host_cost: InterHostCost) -> None:
        """Where latency and bandwidths are those that the constants stand for."""
        two_steps_us = 40.0
        inside_gb_s = inter_host_cost.stage_bytes / (two_steps_us * 1e3)
        for nbytes, hosts in itertools.product(SIZES, (2, 3, 8, 100)):
            waits = 1 + ((hosts - 1).bit_length() if inter_host_cost.tree else hosts - 1)
            half = nbytes / inside_gb_s / 1e3 / 2

            def time(count: int, half: float = half, least: float = waits * two_steps_us) -> float:
                part = half / count
                return pipelined_us(part, least + 2 * part, part, count)

            chosen = time(cut(nbytes, hosts, 4, inter_host_cost)[1])
            best = min(time(count) for count in range(1, Stages.most + 1))
            assert chosen <= 1.25 * best


def simulated(scatter: float, between: float, gather: float, count: int) -> float:
    """Simulates a thread and an engine, event by event, and returns the total time."""
    program: list[tuple[str, int]] = []
    for piece in range(count + 2):
        if piece < count:
            program.append(("scatter", piece))
        if piece >= 2:
            program.append(("gather", piece - 2))
    now, engine_free, through = 0.0, 0.0, {}
    for what, piece in program:
        if what == "scatter":
            now += scatter
            engine_free = through[piece] = max(now, engine_free) + between
        else:
            now = max(now, through[piece]) + gather
    return now


class TestPipeline:
    def test_by_hand(self) -> None:
        assert pipelined_us(1.0, 2.0, 3.0, 1) == 6.0
        # The engine is always busy.
        assert pipelined_us(1.0, 10.0, 2.0, 4) == 1.0 + 4 * 10.0 + 2.0
        # The ring is always busy.
        assert pipelined_us(5.0, 1.0, 5.0, 4) == 4 * 10.0
        # It waits for the first of two pieces, and for the last; of three it need not.
        assert pipelined_us(2.0, 3.0, 2.0, 2) == 2 * 4.0 + 1.0 + 1.0
        assert pipelined_us(2.5, 3.0, 2.5, 3) == 3 * 5.0

    @pytest.mark.parametrize("count", [1, 2, 3, 16])
    def test_as_simulated(self, count: int) -> None:
        numbers = random.Random(count)
        for _ in range(300):
            phases = [numbers.choice([0.0, 0.5, 1.0, numbers.random() * 10]) for _ in range(3)]
            assert pipelined_us(*phases, count) == pytest.approx(simulated(*phases, count))
