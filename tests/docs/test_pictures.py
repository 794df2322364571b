"""The pictures of docs/concepts and docs/design are as they would be drawn now, and show what the
code does."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from docs import pictures
from docs.drawing import direct, hosts, memory, ring, run, tree
from ringkern import _C
from ringkern._C import Plan

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(pictures.__file__).parent


def words(name: str) -> list[str]:
    """Returns the texts of a committed picture, in their order."""
    root = ET.parse(pictures.FOLDER / f"{name}.svg").getroot()
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_files_are_as_they_would_be_drawn() -> None:
    assert pictures.stale() == [], "draw them again: python -m docs.pictures"


def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in pictures.FOLDER.glob("*.svg"):
        (tmp_path / file.name).write_text(file.read_text())
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    changed = tmp_path / "lines.svg"
    changed.write_text(changed.read_text().replace(">06<", ">07<", 1))
    (tmp_path / "chain.svg").unlink()
    (tmp_path / "old.svg").write_text("<svg/>")
    assert pictures.stale() == ["chain.svg", "lines.svg", "old.svg"]
    assert pictures.main(["--check"]) == 1
    assert pictures.main([]) == 0
    assert pictures.stale() == ["old.svg"]


def test_each_picture_is_on_a_page() -> None:
    pages = [*DOCS.glob("concepts/*.md"), *DOCS.glob("design/*.md")]
    text = "".join(page.read_text().replace("](../concepts/", "](") for page in pages)
    for name in pictures.PICTURES:
        assert f"](pictures/{name}.svg)" in text


def test_pictures_load_nothing() -> None:
    for file in pictures.FOLDER.glob("*.svg"):
        text = file.read_text()
        assert "<script" not in text
        assert "href" not in text
        assert "url(" not in text


# ---- the ring -----------------------------------------------------------------------------------


def test_cells_are_the_verbs_of_the_schedule() -> None:
    """Those that TraceLink writes down, rank by rank, in their order."""
    plan = ring.all_reduce()
    cells = iter(words("steps"))
    shown = []
    for word in cells:
        if word.endswith("_"):
            shown.append(word + next(cells))
        elif word in ("send", "recv"):
            shown.append(word)
    steps = len(plan.trace(0))
    assert len(shown) == plan.ranks * steps
    for rank in range(plan.ranks):  # drawn step by step
        assert shown[rank :: plan.ranks] == [row[0] for row in plan.trace(rank)]


def test_data_goes_to_the_next_rank_and_is_taken_in_the_next_step() -> None:
    plan = ring.all_reduce()
    events = run.play(plan)
    for e in events:
        if e.sends:
            taken = [f for f in events if f.rank == plan.next(e.rank) and f.when == e.when + 1]
            assert [f.chunk for f in taken] == [e.chunk]
            assert taken[0].source == e.rank


def test_every_rank_holds_everything_at_the_end() -> None:
    plan = ring.all_reduce()
    events = run.play(plan)
    k, steps = plan.ranks, 1 + max(e.when for e in events)
    complete = tuple(range(k))
    for tensor in run.held(events, k, k, steps):
        assert [tuple(sorted(ranks)) for ranks in tensor] == [complete] * k
    before = run.held(events, k, k, k - 1)  # nothing is written while chunks are incomplete
    assert before == [[(rank,)] * k for rank in range(k)]


def test_each_chunk_is_added_from_behind_its_owner_on() -> None:
    k = ring.all_reduce().ranks
    finished = [e for e in run.play(ring.all_reduce()) if e.verb == "recv_reduce_copy_send"]
    assert {e.chunk: e.ranks for e in finished} == {
        owner: tuple((owner + 1 + hop) % k for hop in range(k)) for owner in range(k)
    }


def test_messages_on_the_ring() -> None:
    """The boxes of each step, in the order of the ranks."""
    events = run.play(ring.all_reduce())
    shown: list[str] = []
    for step, rest in itertools.groupby(words("ring"), lambda w: w.startswith("step ")):
        if not step:
            shown += [w for w in rest if w.isdigit()]
    expected: list[str] = []
    for when in range(6):
        expected += [str(e.chunk) for e in events if e.when == when and e.sends]
        expected += [str(rank) for rank in range(4)]
    assert shown == expected


def test_a_chain_is_pipelined() -> None:
    events = run.play(ring.broadcast())
    assert {(e.rank, e.chunk): e.when for e in events} == {
        (rank, loop): (rank - 1) % 4 + loop for rank in range(4) for loop in range(3)
    }


def test_ranks_that_wait_for_each_other_are_no_picture() -> None:
    class Stuck:
        ranks = 2

        def trace(self, rank: int) -> list[tuple[str, int, int, int, int]]:
            return [("recv", 0, 0, 1, 1)]

    with pytest.raises(ValueError, match="wait for each other"):
        run.play(Stuck())  # type: ignore[arg-type]


# ---- memory -------------------------------------------------------------------------------------


def test_the_cut_is_the_plans() -> None:
    plan, shown = memory.cut_plan(), words("cut")
    assert f"{memory.COUNT:,} float32" in shown
    assert shown[2 : 2 + plan.loops] == [f"loop {i}" for i in range(plan.loops)]
    for loop in (0, plan.loops - 1):
        assert f"chunks of {plan.chunk_of(0, loop, 0)[2]:,}" in shown
    spans = sorted(
        plan.chunk_of(channel, loop, owner)[1:]
        for channel in range(plan.channels)
        for loop in range(plan.loops)
        for owner in range(plan.ranks)
    )
    at = 0
    for first, count in spans:
        assert first == at
        at += count
    assert at == memory.COUNT


@pytest.mark.parametrize("count", [0, 1, 4, 4096, 4097, 32767, 32768])
def test_slices_are_those_that_a_verb_takes(count: int) -> None:
    plan = Plan("all_gather", "simple", 2, max(count, 1), 4)
    slices = plan.slices(count)
    assert [first for first, _ in slices] == [
        sum(n for _, n in slices[:i]) for i in range(len(slices))
    ]
    assert sum(n for _, n in slices) == count
    if count:
        assert plan.trace(0)[0][4] == len(slices)


def test_slices_of_what_is_no_chunk() -> None:
    plan = Plan("all_reduce", "simple", 4, 600_000, 4)
    for count in (-1, plan.chunk + 1):
        with pytest.raises(ValueError, match="a chunk is not so long"):
            plan.slices(count)


def test_the_parts_of_a_segment_lie_side_by_side() -> None:
    parts = [p for p in _C.cpu_segment() if not p[0].startswith("slot of ")]
    end = 0
    for name, at, size in parts:
        assert 0 <= at - end < 4096, f"{name}: a gap that no alignment explains"
        end = at + size
    described = _C.describe("cpu", "all_reduce", "ring", "simple", 4, 1, "float32")
    assert described is not None
    assert end == described["segment_bytes"]
    shown = words("segment")
    assert f"{end:,}" in shown
    for name, at, size in parts:
        if not name.startswith(("tail of", "head of", "sent of", "received of")):
            assert f"{at:,}" in shown
        if name == "FIFO of simple":
            slots = described["slots"]
            assert f"{slots} slots of {memory.amount(size // slots)}" in shown


@pytest.mark.parametrize(("protocol", "bytes_", "data"), [("ll", 16, 8), ("ll128", 128, 120)])
def test_lines_are_what_a_link_writes(protocol: str, bytes_: int, data: int) -> None:
    line, flags = _C.cpu_line(protocol, memory.STEP), memory.flag_places(protocol)
    assert (len(line), len(line) - len(flags)) == (bytes_, data)
    assert [line[i] for i in range(bytes_) if i not in flags] == list(range(data))
    assert flags[0] == (4 if protocol == "ll" else 120)
    assert f"{data} bytes of data in a line of {bytes_}" in " ".join(words("lines"))
    cells = [w for w in words("lines") if len(w) == 2]  # offsets have one digit, or stand before
    numbers = {str(i) for i in range(0, bytes_, 16)}
    shown = [int(w, 16) for w in cells if w not in numbers or int(w) < 16]
    assert bytes(line[:8]) in bytes(shown)


def test_simple_has_no_lines() -> None:
    with pytest.raises(ValueError, match="simple has no lines"):
        _C.cpu_line("simple", 1)


# ---- without a ring -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_verbs_of_a_direct_all_reduce(algorithm: str, rounds: int) -> None:
    """In each iteration the round that is staged, and those behind it, verb by verb."""
    verbs = direct.VERBS[: 3 if algorithm == "two_shot" else 2]
    late = {verb: i * direct.ahead_of(algorithm) for i, verb in enumerate(verbs)}
    assert direct.verbs_of(algorithm, rounds) == [
        [(verb, i - late[verb]) for verb in verbs if 0 <= i - late[verb] < rounds]
        for i in range(rounds + late[verbs[-1]])
    ]


def test_a_slot_is_staged_again_only_after_it_was_collected() -> None:
    slots = 2 + 2 * direct.ahead_of("two_shot")
    order = [pair for iteration in direct.verbs_of("two_shot", 3 * slots) for pair in iteration]
    for round_ in range(2 * slots):
        assert order.index(("collect", round_)) < order.index(("stage", round_ + slots))


def test_direct_traces_refuse_what_is_none() -> None:
    for arguments in (("ring", 4, 1, 4), ("tree", 4, 1, 4), ("one_shot", 1, 1, 4)):
        with pytest.raises(ValueError, match=r"ring has a Plan|unknown algorithm|ranks must be"):
            _C.cpu_direct_trace(*arguments)
    assert _C.cpu_direct_trace("two_shot", 4, 0, 4) == []


# ---- between hosts ------------------------------------------------------------------------------


def test_only_rails_leave_a_host_and_each_carries_one_shard() -> None:
    """Data that a host lacks arrives in the phase between, at the rank that owns the shard."""
    before, scattered, reduced, gathered = hosts.phases()
    everybody = tuple(range(hosts.RANKS))
    for rank in everybody:
        mine = hosts.ranks_on(rank // hosts.LOCAL)
        assert before[rank] == [(rank,)] * hosts.LOCAL
        for j in hosts.HERE:
            own = j == rank % hosts.LOCAL
            assert scattered[rank][j] == (tuple(mine) if own else ())
            assert reduced[rank][j] == (everybody if own else ())
        assert gathered[rank] == [everybody] * hosts.LOCAL


def test_rows_and_columns_of_the_three_phases() -> None:
    shown = words("hosts")
    assert [w for w in shown if w in hosts.PHASES] == list(hosts.PHASES)
    assert [w for w in shown if w.startswith("rank ")] == [f"rank {r}" for r in range(hosts.RANKS)]
    assert [w for w in shown if w.startswith("rail ")] == [f"rail {j}" for j in hosts.HERE]
    shards = hosts.RANKS * hosts.LOCAL
    assert sum(w.startswith("shard ") for w in shown) == 2 * shards + 2 * hosts.RANKS


@pytest.mark.parametrize("ranks", range(1, tree.SHARDS + 1))
def test_sums_over_shards(ranks: int) -> None:
    """With any number of ranks the same sums, each once, in the colour of a rank that has all of
    their shards.
    """
    by_rank, across = tree.spans_of(ranks)
    every = [(first, 1 << level) for level in range(4) for first in range(0, 8, 1 << level)]
    assert sorted(sum(by_rank, across)) == sorted(every)
    assert [spans.count((shard, 1)) for spans in by_rank for shard in range(8)].count(1) == 8
    for spans in by_rank:
        shards = {first for first, count in spans if count == 1}
        assert all(set(range(first, first + count)) <= shards for first, count in spans)
