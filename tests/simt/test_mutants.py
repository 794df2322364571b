"""The generator of mutants: what it weakens in the kernels, and that it misses nothing new."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOVE = "    move(arithmetic_, verb,"
FENCE = "      fence_acq_rel();\n"


class Mutant(NamedTuple):
    number: int
    rule: str
    file: str
    line: int
    function: str
    kind: str
    original: str
    weakened: str


class Kernels:
    """A copy of csrc/cuda, to change, and what the generator makes of it."""

    def __init__(self, directory: Path) -> None:
        self.csrc, self.out = directory / "csrc", directory / "out"
        (self.csrc / "cuda").mkdir(parents=True)
        for path in (ROOT / "csrc" / "cuda").glob("*.cu*"):
            shutil.copy2(path, self.csrc / "cuda")

    def read(self, name: str) -> str:
        return (self.csrc / "cuda" / name).read_text()

    def change(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        assert old in text
        (self.csrc / "cuda" / name).write_text(text.replace(old, new, 1))

    def generate(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / "tests/simt/mutants.py", self.csrc, self.out]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def mutants(self) -> list[Mutant]:
        run = self.generate()
        assert run.returncode == 0, run.stderr
        text = r'"((?:[^"\\]|\\.)*)"'
        row = rf"\{{(\d+), {text}, {text}, (\d+), {text},\s+{text},\s+{text},\s+{text}\}}"
        found = re.findall(row, (self.out / "mutants.h").read_text())
        return [Mutant(int(m[0]), m[1], m[2], int(m[3]), *m[4:]) for m in found]

    def complaint(self) -> str:
        run = self.generate()
        assert run.returncode == 1
        assert "Traceback" not in run.stderr
        return run.stderr


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels(tmp_path)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_every_mutant_is_in_the_code_once_numbered_and_named(kernels: Kernels) -> None:
    mutants = kernels.mutants()
    assert [m.number for m in mutants] == list(range(1, len(mutants) + 1))
    names = [(m.file, m.function, m.kind) for m in mutants]
    assert len(set(names)) == len(names)
    for file in {m.file for m in mutants}:
        text = (kernels.out / "cuda" / file).read_text()
        there = {int(n) for n in re.findall(r"::simt::mutated\((\d+)\)", text)}
        assert there >= {m.number for m in mutants if m.file == file}


def test_no_line_moves(kernels: Kernels) -> None:
    mutants = kernels.mutants()
    for path in (kernels.csrc / "cuda").glob("*.cuh"):
        if path.name != "ptx.cuh":
            written = (kernels.out / "cuda" / path.name).read_text().split("\n")
            assert written[:2] == ['#include "mutation.h"', f'#line 1 "{path}"']
            original = path.read_text().split("\n")
            assert len(written) - 2 == len(original)
            changed = {i + 1 for i, (a, b) in enumerate(zip(original, written[2:])) if a != b}
            assert changed >= {m.line for m in mutants if m.file == path.name}
            assert all(original[line - 1].strip() for line in changed)
    assert not (kernels.out / "cuda" / "ptx.cuh").exists()


def test_nothing_is_written_twice(kernels: Kernels) -> None:
    kernels.mutants()
    paths = [*kernels.out.rglob("*.cuh"), kernels.out / "mutants.h"]
    before = [(p.stat().st_mtime_ns, p.read_text()) for p in paths]
    kernels.mutants()
    assert [(p.stat().st_mtime_ns, p.read_text()) for p in paths] == before


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("link.cuh", "fence_acq_rel dropped"),
        ("link.cuh", "ld_acquire relaxed if for_data"),
        ("link.cuh", "st_relaxed dropped: st_relaxed(&Post::get(post_.prev)->head.value"),
        ("link.cuh", "st_relaxed(&Post::get(post_.prev)->head.value, head) before the"),
        ("link.cuh", "ahead one more if not for_data"),
        ("link.cuh", "poll: !for_credit taken for granted"),
        ("link.cuh", "now != kPoisoned always"),
        ("link.cuh", "failed_ != 0 never"),
        ("link.cuh", "received_ not stored"),
        ("link.cuh", "count_round relaxed"),
        ("link.cuh", "count_round from the end"),
        ("link.cuh", "count_round never from 0 again"),
        ("link.cuh", "st_release dropped: st_release(&Post::get(post.mailbox)->done"),
        ("direct.cuh", "fence_acq_rel dropped"),
        ("direct.cuh", "wait_finished dropped"),
        ("direct.cuh", "ahead one more"),
        ("direct.cuh", "ll_rewrites_slot never"),
        ("mesh_ends.cuh", "round_ not stored"),
        ("mesh_ends.cuh", "poison_links dropped"),
        ("mesh_ends.cuh", "ld_relaxed(Post::get(post.poisoned)) == kPoisoned ignored"),
        ("across.cuh", "fence_acq_rel dropped"),
        ("across.cuh", "poll: has_come(other) taken for granted"),
        ("across.cuh", "seen_ != kPoisoned always"),
        ("direct.cuh", "uint32_t(w[i].hi >> 32) != flag taken for granted"),
        ("direct.cuh", "poll: uint32_t(w.lo >> 32) == flag taken for granted"),
        ("ll.cuh", "ll_flag constant everywhere"),
        ("ll.cuh", "ll_rewrites_slot never: ll_rewrites_slot(ends_.sent()"),
        ("ll.cuh", "ll_next_flag the same: ll_next_flag(to_flag_)"),
        ("lines.cuh", "ahead one more"),
        ("lines.cuh", "!moves() never"),
        ("ll.cuh", "poll: uint32_t(w.hi >> 32) == flag taken for granted"),
        ("ll.cuh", "empty chunk not sent"),
        ("ll128.cuh", "poll: b.hi == flag taken for granted"),
        ("ll128.cuh", "incoming not loaded once more"),
        ("ll128.cuh", "wait(ends_.post(), Protocol::ll128"),
        ("simple.cuh", "wait_slots not for credit"),
        ("simple.cuh", "agree dropped"),
        ("wait.cuh", "ld_relaxed(Post::get(post.failed)) != 0 ignored"),
        ("wait.cuh", "ld_relaxed(&Post::get(post.mine)->tail.value) == kPoisoned ignored"),
        ("wait.cuh", "now - since < timeout always"),
        ("wait.cuh", "mine != Verdict::ok ignored"),
        ("wait.cuh", "seq not recorded"),
        ("wait.cuh", "timeout_ns not recorded"),
        ("wait.cuh", "look dropped"),
    ],
)
def test_the_kernels_have_this_mutant(kernels: Kernels, file: str, kind: str) -> None:
    assert len([m for m in kernels.mutants() if m.file == file and m.kind.startswith(kind)]) == 1


def test_a_new_fence_is_a_new_mutant(kernels: Kernels) -> None:
    before = kernels.mutants()
    statement = "    ++polled, fence_acq_rel();\n"
    kernels.change("simple.cuh", MOVE, statement + MOVE)
    after = kernels.mutants()
    new = [m for m in after if m.file == "simple.cuh" and m.rule == "fence_acq_rel"]
    assert len(after) == len(before) + 1
    assert [(m.line, m.function, m.kind) for m in new] == [
        (line_of(kernels.read("simple.cuh"), statement), "move_slice", "fence_acq_rel dropped")
    ]
    n = new[0].number
    written = (kernels.out / "cuda" / "simple.cuh").read_text()
    assert f"++polled, (::simt::mutated({n}) ? void() : fence_acq_rel());" in written


def test_text_that_looks_like_a_fence_is_not_a_fence(kernels: Kernels) -> None:
    before = kernels.mutants()
    kernels.change(
        "simple.cuh",
        MOVE,
        '    // fence_acq_rel();\n    /* fence_acq_rel();\n */ log("fence_acq_rel();");\n' + MOVE,
    )
    assert [m._replace(line=0) for m in kernels.mutants()] == [m._replace(line=0) for m in before]


def test_a_condition_is_weakened_operand_by_operand(kernels: Kernels) -> None:
    kernels.change("ll.cuh", "if (!active) return true;", "if ((a && (b || c)) || d) return true;")
    polls = [m.original for m in kernels.mutants() if m.file == "ll.cuh" and m.rule == "polls"]
    # `b || c` is true with either of them, and the whole with `d`.
    assert polls[:3] == ["(a && (b || c)) || d", "a", "b || c"]
    assert len(polls) == 5


def test_choices_within_choices(kernels: Kernels) -> None:
    kernels.change(
        "ll.cuh", "= ld_relaxed16(from);", "= ld_relaxed16(at(claim(from), /*why*/\n 1));"
    )
    n = {m.rule: m.number for m in kernels.mutants() if m.file == "ll.cuh"}
    claim = f"(::simt::mutated({n['claim']}) ? true : claim(from))"
    assert (
        f"= (::simt::mutated({n['ld_relaxed16']}) ? ld_weak16(at({claim}, 1)) : "
        f"ld_relaxed16(at({claim}, /*why*/\n 1)));"
    ) in (kernels.out / "cuda" / "ll.cuh").read_text()


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        pytest.param(
            "ptx.cuh",
            "RK_DEVICE void fence_acq_rel()",
            "RK_DEVICE void fence_sc() { }\nRK_DEVICE void fence_acq_rel()",
            "ptx.cuh defines fence_sc, which mutants.py does not know",
            id="a new intrinsic",
        ),
        pytest.param(
            "ptx.cuh",
            "#define RK_NO_UNROLL",
            "#define RK_FENCE __threadfence()\n#define RK_NO_UNROLL",
            "ptx.cuh defines RK_FENCE, which",
            id="a new macro",
        ),
        pytest.param(
            "ptx.cuh",
            "void rest(uint32_t nanoseconds)",
            "void pause(uint32_t nanoseconds)",
            "ptx.cuh defines pause, which",
            id="an intrinsic of another name",
        ),
        pytest.param(
            "wait.cuh",
            "claim(Post::get(post.failed))",
            "true",
            "the rule for claim finds nothing to weaken",
            id="a rule that matches nothing",
        ),
        pytest.param(
            "link.cuh",
            FENCE,
            "      const auto order = &fence_acq_rel;\n",
            r"link.cuh:\d+: fence_acq_rel is used, but not called",
            id="an intrinsic that is not called",
        ),
        pytest.param(
            "wait.cuh",
            "all_lanes(ready)",
            "all_lanes()",
            r"wait.cuh:\d+: all_lanes is called in a way that",
            id="a call without its argument",
        ),
        pytest.param(
            "link.cuh",
            "step - ahead, reached,",
            "step - ahead, Reached{},",
            r"link.cuh:\d+: this wait does not poll with a lambda",
            id="a wait with another poll",
        ),
        pytest.param(
            "link.cuh",
            "if (now != kPoisoned) seen_ = now;",
            "if (now < kPoisoned) seen_ = now;",
            r"link.cuh:\d+: kPoisoned is used in a way",
            id="another look at poison",
        ),
        pytest.param(
            "link.cuh",
            FENCE,
            FENCE + "      __threadfence_system();\n",
            r"link.cuh:\d+: __threadfence_system belongs in ptx.cuh",
            id="CUDA beside the header of intrinsics",
        ),
        pytest.param(
            "launch.cu",
            "    uint64_t word = ld_weak",
            "    syncwarp();\n    uint64_t word = ld_weak",
            "syncwarp is called in a file that is not mutated",
            id="order in a file that is compiled as it is",
        ),
        pytest.param(
            "ll.cuh", "return true;\n", "return true;{\n", "unbalanced", id="unbalanced braces"
        ),
    ],
)
def test_unknown_code_is_an_error(
    kernels: Kernels, file: str, old: str, new: str, complaint: str
) -> None:
    kernels.change(file, old, new)
    assert re.search(complaint, kernels.complaint())


def test_the_table_compiles(kernels: Kernels) -> None:
    kernels.mutants()
    source = kernels.out / "table.cpp"
    source.write_text('#include "mutants.h"\nstatic_assert(kMutants[0].number == 1);\n')
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "a C++ compiler is needed to build ringkern"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", ROOT / "tests/simt", source]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
