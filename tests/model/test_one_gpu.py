"""Ranks that share one GPU: how calls are cut, the formulas, what was measured, what is printed."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringkern import _C
from ringkern.choose import cache, tables
from ringkern.choose.cost import Way
from ringkern.tools import model
from ringkern.tools.model import command, cuts, measured, one_gpu
from ringkern.tools.model.one_gpu import DIRECT, H100, H200, Gpu, predict

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "2026-11-26-h100.json"
K, M = 1 << 10, 1 << 20
SIZES = [1, 4, 100, 5000, 8 * K, 64 * K, 100_000, M, 5 * M + 4, 16 * M, 256 * M]
# Each prediction over the measured time. The next tests list the exceptions.
BOUNDS = (0.8, 1.25)


def figures_of(part: str) -> Any:
    """Returns those of the last run of `make gpu` in the file."""
    runs = [run for run in json.loads(RESULTS.read_text())["runs"] if "parts" in run]
    return next(each["figures"] for each in runs[-1]["parts"] if each["part"] == part)


class TestCounts:
    def test_a_table_is_read(self) -> None:
        text = "# of sums\nprotocol verb worker poster\nll begin 152 84\nll_small recv 9 1\n"
        assert one_gpu.costs_of(text) == {"ll begin": 152, "ll_small recv": 9}
        assert {"simple end", "one_shot_small round8", "in_place all2"} <= set(
            one_gpu.shipped_costs()
        )

    @pytest.mark.parametrize("protocol", _C.protocols)
    def test_a_unit_of_data_is_a_part_of_a_step(self, protocol: str) -> None:
        fixed, unit = one_gpu._step(one_gpu.shipped_costs(), protocol)
        assert unit > 0
        assert fixed > 0

    def test_a_step_by_hand(self) -> None:
        """Two verbs of LL take 450 with a line each, and 690 with four: 40 a line in each."""
        costs = {"ll_small send+recv": 450, "ll send+recv": 690, "ll begin": 7}
        costs |= {"ll send+recv_reduce_copy": 8, "ll_small copy_send": 9, "ll128 send": 10}
        assert one_gpu._step(costs, "ll") == pytest.approx((225 - 40, 40))


class TestCuts:
    @pytest.mark.skipif(not _C.build_info()["cuda"], reason="built without CUDA")
    @pytest.mark.parametrize("ranks", [2, 3, 4, 8])
    @pytest.mark.parametrize("nbytes", SIZES)
    def test_as_the_extension_cuts(self, ranks: int, nbytes: int) -> None:
        count = -(-nbytes // 4)
        for way in one_gpu.WAYS[1:]:
            told = _C.describe("cuda", "all_reduce", *way[:2], ranks, count, "float32")
            assert told is not None
            if way.algorithm == "ring":
                plan = cuts.ring(way.protocol, ranks, nbytes, 32)
                found = (plan.channels, plan.loops, plan.chunk_of(0, 0, 0)[2])
                expected = min(told["chunk"], count)
                fifo = cuts.SLOTS * cuts.SLOT_BYTES[way.protocol]
                assert told["staging_bytes"] == plan.channels * fifo
            else:
                cut = cuts.direct(way.algorithm, ranks, nbytes, 32)
                assert cut.part == told["part"]
                found, expected = cut[:3], told["chunk"]
            assert found == (told["channels"], told["rounds"], expected)

    def test_constants_are_those_of_the_sources(self) -> None:
        text = "".join(
            (ROOT / "csrc" / name).read_text()
            for name in ("core/config.h", "cuda/launch.h", "cuda/mesh.h")
        )

        def constant(name: str) -> int:
            (value,) = re.findall(rf"\b{name} = ([^;]+);", text)
            left, _, right = value.partition(" << ")
            return int(left) << int(right or 0)

        assert constant("kMaxThreads") - 32 == cuts.WORKERS
        assert constant("kFifoBudget") == cuts.FIFO_BUDGET
        assert constant("kBlocksPerSM") == cuts.BLOCKS_PER_MULTIPROCESSOR
        assert constant("kMaxChannels") == cuts.MOST_CHANNELS
        assert constant("kChannelBytes") == cuts.MESH_BYTES

    def test_channels_of_an_h100(self) -> None:
        assert [cuts.channels_of(132, ranks) for ranks in (2, 3, 4, 8)] == [64, 42, 32, 16]
        assert cuts.channels_of(16, 8) == 4
        assert cuts.channels_of(1, 8) == 1


# Round figures: an instruction is INSTRUCTION_NS, all else is told here.
GPU = Gpu("a GPU", "", 1.0, {"simple": 9.0, "ll": 0.5, "ll128": 7.0}, 1e3, 4e3, 64 * M, 132)


def us(instructions: float) -> float:
    return instructions * one_gpu.INSTRUCTION_NS / 1e3


class TestFormulas:
    def test_over_the_tensors_by_hand(self) -> None:
        """5 ranks are half way between 2 and 8; 2 x 5 MiB are read and written within the L2."""
        costs = {"in_place all2": 100, "in_place all8": 700}
        found = predict(GPU, DIRECT, 5, M, costs)
        assert found == pytest.approx((1.0, us(400), 0.5, 0.0, 10 * M / 4e6))
        beyond = predict(GPU, DIRECT, 5, 16 * M, costs)
        assert beyond.bytes == pytest.approx(160 * M / 1e6)
        assert beyond.time_us == pytest.approx(1.5 + us(400) + beyond.bytes)

    def test_a_ring_by_hand(self) -> None:
        """LL, 2 ranks, 1 MiB: 64 channels, chunks of 8 KiB, of which a thread moves three lines."""
        costs = {"ll begin": 100, "ll all_meet": 50, "ll end": 10}
        costs |= {"ll_small send": 200, "ll send": 500}  # a step is 100 instructions and 100 a line
        found = predict(GPU, Way("ring", "ll"), 2, M, costs)
        assert found.instructions == pytest.approx(us(160 + 3 * 200))
        assert found.waits == pytest.approx(0.5 + 0.5 + 2 * 0.5)  # counters, input, hops
        assert found.rest == pytest.approx(3 * 2 * (us(100) + 0.5))
        assert found.bytes == pytest.approx((2 * 2 * M + 4 * 2 * M) / 4e6)
        assert found.time_us == pytest.approx(1 + sum(found[1:3]) + found.rest)

    def test_an_empty_chunk_has_no_data(self) -> None:
        """LL128, 8 ranks, 8 KiB: 1,920 bytes a chunk, and so five chunks of eight."""
        costs = {"ll128 begin": 0, "ll128 all_meet": 0, "ll128 end": 0}
        costs |= {"ll128_small send": 200, "ll128 send": 300}
        found = predict(GPU, Way("ring", "ll128"), 8, 8 * K, costs)
        assert found.instructions == pytest.approx(us(15 * (100 + 100 * 5 / 8)))
        assert found.waits == pytest.approx(0.5 + 0.5 * 5 / 8 + 14 * (7.0 + 0.5 * 5 / 8))
        assert found.rest == pytest.approx(0, abs=1e-9)

    def test_one_shot_by_hand(self) -> None:
        """8 ranks, 64 KiB: 16 channels, and 512 lines of a chunk for 352 threads."""
        costs = {f"one_shot_small {part}8": n for part, n in zip(("begin", "end"), (10, 20))}
        costs |= {"one_shot_small round8": 100, "one_shot round8": 160}
        costs |= {key.replace("8", "2"): 0 for key in costs}
        found = predict(GPU, Way("one_shot", "ll"), 8, 64 * K, costs)
        assert found.instructions == pytest.approx(us(130))
        assert found.waits == pytest.approx(0.5 * (1 + 1 + 2))  # counters, input, two batches
        assert found.rest == pytest.approx(us(60) + 3 * 0.5)
        # Tensors; lines of twice the data, to and from 7 others; tensors once more, to be reduced.
        moved = 2 * 8 + 2 * (2 * 8 * 7) + 8
        assert found.bytes == pytest.approx(moved * 64 * K / 4e6)

    def test_two_shot_by_hand(self) -> None:
        """8 ranks, 2 MiB: 8 rounds of 16 channels; 2,048 lines of a chunk, 256 of a part."""
        costs = {f"two_shot_small {part}8": n for part, n in zip(("begin", "end"), (10, 20))}
        costs |= {"two_shot_small round8": 100, "two_shot round8": 130}
        costs |= {"one_shot_small round8": 50, "one_shot round8": 90}
        costs |= {key.replace("8", "2"): 0 for key in costs}
        cut = cuts.direct("two_shot", 8, 2 * M, 16)
        assert cut == (16, 8, 2 * 2048, 2 * 256)
        found = predict(GPU, Way("two_shot", "ll"), 8, 2 * M, costs)
        assert found.instructions == pytest.approx(us(130))
        assert found.waits == pytest.approx(0.5 * (1 + 1 + 2 + 1))  # the last one for the results
        a_round = us(100 + 5 * 30) + 0.5 * (2 * 6 + 2)  # six lines a thread, one to be reduced
        assert found.rest == pytest.approx(8 * a_round - us(100) - 0.5 * 4)
        moved = 2 * 8 + 2 * 2 * (2 * 8 * 7 / 8) + 1  # lines twice: what is staged, and the results
        assert found.bytes == pytest.approx(moved * 2 * M / 4e6)

    @pytest.mark.parametrize("way", one_gpu.WAYS)
    @pytest.mark.parametrize("ranks", range(2, 9))
    def test_more_bytes_take_longer(self, way: Way, ranks: int) -> None:
        for gpu in (H100, H200):
            times = [predict(gpu, way, ranks, 8 * K << shift).time_us for shift in range(16)]
            assert all(later >= 0.99 * sooner for sooner, later in itertools.pairwise(times))
            floors = [gpu.floor_us(ranks, 8 * K << shift) for shift in range(16)]
            assert all(time > floor for time, floor in zip(times, floors))

    @pytest.mark.parametrize("protocol", ["simple", "ll"])
    @pytest.mark.parametrize("ranks", [2, 4])
    def test_a_ring_over_host_memory_is_as_fast_as_its_links(
        self, protocol: str, ranks: int
    ) -> None:
        """The bytes that a rank sends in each direction take longest, and hide the rest."""
        way = Way("ring", protocol)
        for link in (one_gpu.GEN4, one_gpu.GEN5):
            gpu = one_gpu.over_host(H200, link, ranks)
            sent = 2 * (ranks - 1) / ranks * 64 * M * (2 if protocol == "ll" else 1)
            found = predict(gpu, way, ranks, 64 * M)
            assert found.bytes == pytest.approx(sent / link.gb_s / 1e3, rel=0.02)
            assert predict(gpu, way, ranks, 8).waits >= 2 * (ranks - 1) * link.hop_us[protocol]


class TestMeasured:
    @pytest.mark.parametrize("ranks", one_gpu.RANKS)
    def test_auto_goes_over_the_tensors(self, ranks: int) -> None:
        rows = tables.table("cuda", ranks, one_device=True)["automatic"]
        assert [Way(*row[1:]) for row in rows] == [measured.CONTENDERS["ringkern/auto"]]

    def rows(self) -> list[measured.Compared]:
        return measured.read(RESULTS)[1]

    @pytest.mark.parametrize("gpu", [H100, H200])
    def test_the_limits_are_those_of_the_file(self, gpu: Gpu) -> None:
        told, _ = measured.read(RESULTS.with_name(f"2026-11-26-{gpu.name.lower()}.json"))
        for name in ("launch_us", "hbm_gb_s", "l2_gb_s", "l2_bytes", "multiprocessors"):
            assert getattr(gpu, name) == getattr(told, name)
        assert gpu.hop_us == pytest.approx(told.hop_us)

    def test_the_links_are_those_of_the_file(self) -> None:
        runs = json.loads(RESULTS.with_name("2026-11-26-h200.json").read_text())["runs"]
        (lines,) = (
            p["figures"]["lines"] for run in runs for p in run["parts"] if p["part"] == "limits"
        )
        hops = {row["how"]: row["ns_per_hop"] for row in lines if row["limit"] == "host_ping_pong"}
        found = [
            hops[how] / 1e3
            for how in ("fence + relaxed / ld.acquire (Simple)", "16-byte line (LL)")
        ]
        assert [*one_gpu.GEN5.hop_us.values()] == pytest.approx(found)
        both = {"how": "kernel", "blocks": 32, "out": 1, "in": 1}
        (rate,) = (row["gb_s_each_way"] for row in lines if both.items() <= row.items())
        assert one_gpu.GEN5.gb_s == rate == 2 * one_gpu.GEN4.gb_s

    def test_the_constant_is_fitted_to_two_times(self) -> None:
        four, eight = (
            next(
                row.measured_us
                for row in self.rows()
                if (row.ranks, row.nbytes, str(row.way)) == (ranks, 8 * K, "ring/ll")
            )
            for ranks in (4, 8)
        )
        step = sum(one_gpu._step(figures_of("speed")["costs"], "ll"))
        fitted = ((eight - four) / 8 - H100.hop_us["ll"]) / step * 1e3
        assert round(fitted, 2) == one_gpu.INSTRUCTION_NS

    def test_every_time_is_predicted_within_the_bounds(self) -> None:
        rows = self.rows()
        assert len(rows) == 72
        assert {row.way for row in rows} == {
            way for way in one_gpu.WAYS if way != ("two_shot", "ll", 1)
        }
        for row in rows:
            assert BOUNDS[0] <= row.ratio <= BOUNDS[1], row
        assert statistics.median(measured.error_of(row.ratio) for row in rows) < 1.06

    def without(self, **terms: float) -> list[float]:
        return [row.terms._replace(**terms).time_us / row.measured_us for row in self.rows()]

    @pytest.mark.parametrize("term", one_gpu.Terms._fields)
    def test_the_bounds_need_every_term(self, term: str) -> None:
        ratios = self.without(**{term: 0.0})
        assert min(ratios) < BOUNDS[0]

    @pytest.mark.parametrize(
        ("module", "name", "value"),
        [
            (one_gpu, "INSTRUCTION_NS", 2.1),
            (one_gpu, "INSTRUCTION_NS", 3.6),
            (one_gpu, "KEPT_IN_L2", 0.1),
            (one_gpu, "KEPT_IN_L2", 0.7),
            (one_gpu, "FURTHER_TRIPS", {"ll": 0, "ll128": 0, "simple": 0}),
            (one_gpu, "OVERHEAD", {"ll": 0.0, "ll128": 0.0, "simple": 0.0}),
            (one_gpu, "AT_ONCE", 1),
            (cuts, "WORKERS", 128),
        ],
    )
    def test_the_bounds_need_the_constants(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any
    ) -> None:
        monkeypatch.setattr(module, name, value)
        ratios = self.without()
        assert min(ratios) < BOUNDS[0] or max(ratios) > BOUNDS[1]

    @pytest.mark.parametrize(
        "content",
        [
            "no JSON",
            "[]",
            "{}",
            '{"runs": [{"parts": [{"part": "speed", "figures": {"rows": []}}]}]}',
            '{"machine": {}, "parts": '
            '[{"part": "speed", "figures": {"costs": {}, "limits": {"a": 1}}}]}',
        ],
    )
    def test_a_file_without_results(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "summary.json"
        file.write_text(content)
        with pytest.raises(
            ValueError, match=r"has no times of ranks on one GPU .* give the summary"
        ):
            measured.read(file)

    def test_a_summary_of_make_gpu(self, tmp_path: Path) -> None:
        """With a GPU of its own, and kernels of its own."""
        content = json.loads(RESULTS.read_text())
        speed = figures_of("speed")
        speed["limits"]["launch_us"] += 100
        speed["costs"]["ll begin"] += 1000
        summary = {"machine": content["machine"], "parts": [{"part": "speed", "figures": speed}]}
        file = tmp_path / "summary.json"
        file.write_text(json.dumps(summary))
        slower = measured.read(file)[1]
        for row, before in zip(slower, self.rows(), strict=True):
            more = us(1000) if row.way == ("ring", "ll", 1) else 0.0
            assert row.terms.time_us == pytest.approx(before.terms.time_us + 100 + more)


class TestShipped:
    """The costs of "auto" on CUDA without a measurement."""

    def predicted(self, way: Way, ranks: int, nbytes: int, costs: Any = None) -> float:
        return predict(H100, way, ranks, nbytes, costs).time_us

    def test_they_are_what_the_command_writes(self, tmp_path: Path) -> None:
        """Else write that file again: python -m ringkern model --gpu H100 --write FILE."""
        pytest.importorskip("scipy")
        file = tmp_path / "costs.json"
        parser = argparse.ArgumentParser()
        model.add_arguments(parser)
        assert model.run(parser.parse_args(["--gpu", "H100", "--write", str(file)])) == 0
        written, shipped = cache.read(file), cache.read(cache.PREDICTED)
        assert written.machine == shipped.machine
        for new, old in zip(written.measured, shipped.measured, strict=True):
            assert replace(new, ways={}) == replace(old, ways={})
            for key, fitted in new.ways.items():
                for size in command.FITTED_SIZES:  # another scipy has other last digits
                    asked = (key[1], key[0], new.ranks, size)
                    assert old.ways[key].cost.time_us(*asked) == pytest.approx(
                        fitted.cost.time_us(*asked), rel=2e-3
                    ), key

    @pytest.mark.parametrize("ranks", one_gpu.RANKS)
    def test_they_are_near_the_predictions(self, ranks: int) -> None:
        ways = tables.costs("cuda", ranks).measured.ways
        for (name, way), fitted in ways.items():
            for size in command.FITTED_SIZES:
                wanted = self.predicted(way, ranks, size)
                if name != "all_reduce":
                    wanted = (wanted + H100.launch_us) / 2
                found = fitted.cost.time_us(way, name, ranks, size)
                assert found == pytest.approx(wanted, rel=0.06), (name, way, size)

    @pytest.mark.parametrize("ranks", one_gpu.RANKS)
    def test_the_table_takes_the_quickest_that_was_measured(self, ranks: int) -> None:
        """Within 10 %. Times of the ring are of earlier kernels: as much quicker as predicted."""
        then = figures_of("speed")["costs"]
        rows = json.loads(RESULTS.read_text())["runs"][-1]["rows"]
        channels = cuts.channels_of(H100.multiprocessors, ranks)
        times: dict[int, dict[Way, float]] = {}
        for row in rows:
            way, size = Way(row["algorithm"], row["protocol"]), row["size_bytes"]
            as_now = (row["ranks"], row["channels"], row["slots"]) == (ranks, channels, cuts.SLOTS)
            if as_now and way != DIRECT and tables.may_be_unasked(way, "cuda"):
                change = [self.predicted(way, ranks, size, costs) for costs in (None, then)]
                times.setdefault(size, {})[way] = row["hot_us"] * change[0] / change[1]
        assert len(times) == 9
        lists = tables.table("cuda", ranks)
        for size, of in times.items():
            assert of[tables.way_of(lists["automatic"], size)] <= 1.1 * min(of.values()), size
            direct = {way: time for way, time in of.items() if way.algorithm != "ring"}
            if direct:
                chosen = tables.way_of(lists["in_rank_order"], size)
                assert direct[chosen] <= 1.1 * min(direct.values()), size


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    model.add_arguments(parser)
    assert model.run(parser.parse_args(arguments)) == 0
    return capsys.readouterr().out


class TestCommand:
    def test_tables(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--device", "cuda").splitlines()
        assert lines[0].startswith("one H100, limits measured on an NVIDIA H100 80GB HBM3 on 2026")
        heads = [number for number, line in enumerate(lines) if line.endswith("of one process")]
        assert [lines[number][0] for number in heads] == ["2", "4", "8"]
        for number in heads:
            names = lines[number + 2].split()
            assert names == ["size", *map(str, one_gpu.WAYS), "share"]
            rows = [line.split() for line in lines[number + 3 : number + 11]]
            assert [row[0] for row in rows] == [
                *("8K", "64K", "256K", "1M"),
                *("4M", "16M", "64M", "256M"),
            ]
            for row in rows:
                assert len(row) == len(names)
                assert row[1].endswith("*")
        terms = predict(H100, DIRECT, 2, 8 * K)
        assert f"{terms.time_us:.1f}*" in lines[heads[0] + 3]
        assert lines[heads[0] + 3].endswith(f"{H100.launch_us / terms.time_us:.0%}")
        assert lines[-1].startswith("Measured next to predicted: --check FILE")

    def test_an_h200_is_a_prediction(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--gpu", "H200", "-n", "3", "--sizes", "256M").splitlines()
        assert lines[0].startswith("one H200, limits measured on an NVIDIA H200 on 2026-11-26")
        assert lines[1] == "3 ranks of one process"
        assert f"{predict(H200, DIRECT, 3, 256 * M).time_us:.1f}*" in lines[4]

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("--device", "cuda", "--sizes", "8K,1M", "--json")
        tables = json.loads(run(capsys, *arguments))["tables"]
        assert [table["ranks"] for table in tables] == [2, 4, 8]
        one = json.loads(run(capsys, *arguments, "-n", "4"))
        assert one == tables[1]
        assert one["gpu"] == "H100"
        assert one["rows"][1]["floor_us"] == H100.floor_us(4, M)
        for found in one["rows"][1]["estimates"]:
            way = Way(*found["way"].split("/"))
            assert found["time_us"] == predict(H100, way, 4, M).time_us

    def test_check(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run(capsys, "--check", str(RESULTS)).splitlines()
        assert lines[0] == "NVIDIA H100 80GB HBM3, limits measured in the same run"
        assert len(lines) == 3 + 72 + 3
        data = json.loads(run(capsys, "--check", str(RESULTS), "--json"))
        ratios = [row["ratio"] for row in data["rows"]]
        assert f"72 times: ratios from {min(ratios):.2f} to {max(ratios):.2f}" in lines[-1]
        for row in data["rows"]:
            terms = row["terms_us"]
            overlapped = min(terms["rest"], terms["bytes"])
            assert row["predicted_us"] == pytest.approx(sum(terms.values()) - overlapped)

    def test_plot(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        file = tmp_path / "curves.png"
        run(capsys, "--gpu", "H100", "-n", "2", "--plot", str(file))
        assert file.read_bytes().startswith(b"\x89PNG")

    def test_a_topology_is_of_many_gpus(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = run(capsys, "--device", "cuda", "--topology", "dgx-h100", "--sizes", "8K")
        assert text == run(capsys, "--sizes", "8K")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--device", "cuda", "-n", "1"], "-n 1: on one H100 are 2 to 8 ranks"),
            (["--gpu", "H200", "-n", "9"], "-n 9: on one H200 are 2 to 8 ranks"),
            (["--gpu", "H100", "--hosts", "2"], "that share a GPU: leave out --hosts"),
            (["--gpu", "H100", "--inter-us", "0"], "that share a GPU: leave out --inter-us"),
            (["--gpu", "H100", "--sweep"], "that share a GPU: leave out --sweep"),
            (["--gpu", "H100", "--device", "cpu"], "--gpu is of GPUs: leave it out"),
            (["--gpu", "H100", "--plot", "x.png"], "--plot draws one number of ranks: give -n"),
            (["--device", "cuda", "--sizes", "0"], "--sizes 0: give sizes above 0"),
            *(
                (["--gpu", "H100", *other, "--write", "x.json"], "--write is of one GPU, all")
                for other in (["--sizes", "8K"], ["-n", "2"], ["--plot", "x.png"])
            ),
            (["--device", "cpu", "--write", "x.json"], "--write is of one GPU, all"),
        ],
    )
    def test_arguments_that_do_not_fit(self, arguments: list[str], text: str) -> None:
        parser = argparse.ArgumentParser()
        model.add_arguments(parser)
        with pytest.raises(ValueError, match=text):
            model.run(parser.parse_args(arguments))
