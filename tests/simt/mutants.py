"""Weakens the kernels, one place at a time: writes the copy of csrc/cuda that tests/simt runs.

    python3 tests/simt/mutants.py csrc OUT_DIR

In OUT_DIR/cuda, each place that keeps the kernels correct is a choice between the original and a
weakened form (mutation.h); OUT_DIR/mutants.h is the table of all. rules.py defines the places and
their weakened forms. So that nothing new is missed, every function of cuda/ptx.cuh must be in CALLS
or in ORDERS_NOTHING there, and every rule must match.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rules import CALLS, ELSEWHERE, ORDERS_NOTHING, RULES, Choice
from sources import Error, Source

Numbered = dict[tuple[int, int], list[tuple[int, Choice]]]  # what may stand at a span


class Mutant(NamedTuple):
    """A row of the table (mutation.h)."""

    rule: str
    file: str
    line: int
    function: str
    kind: str
    original: str
    weakened: str


def check(intrinsics: Source, kernels: list[Source], others: list[Source]) -> None:
    """Nothing may order accesses without being known here."""
    defined = {f.name for f in intrinsics.functions}
    defined |= set(re.findall(r"^\s*#\s*define\s+(\w+)", intrinsics.source, re.MULTILINE))
    for name in sorted(defined - CALLS.keys() - ORDERS_NOTHING.keys()):
        raise Error(
            f"{intrinsics.name} defines {name}, which mutants.py does not know: give it its weaker "
            "forms in CALLS, or the reason why it orders nothing in ORDERS_NOTHING"
        )
    in_kernels = {f.name for s in kernels for f in s.functions}
    for name in sorted(ORDERS_NOTHING.keys() - defined):
        raise Error(f"{name} of ORDERS_NOTHING is no longer in {intrinsics.name}")
    for name in sorted(ORDERS_NOTHING.keys() & CALLS.keys()):
        raise Error(f"{name} is both in CALLS and in ORDERS_NOTHING")
    for name in sorted(ELSEWHERE.keys() - {s.name for s in others}):
        raise Error(f"{name} of ELSEWHERE is not there")
    for s in (*kernels, *others):
        for i, token in enumerate(s.tokens):
            call = token.startswith("__") and s.at(i + 1, "(")
            if call or token in ("asm", "volatile"):
                raise s.error(i, f"{token} belongs in {intrinsics.name}, where mutants.py sees it")
            known = token in CALLS and (token in defined or token in in_kernels)
            if known and s in others and s.name not in ELSEWHERE:
                raise s.error(i, f"{token} is called in a file that is not mutated; move it")


def number(kernels: list[Source]) -> tuple[list[Mutant], dict[str, Numbered]]:
    """The table, and what may stand where in each file."""
    table: list[Mutant] = []
    groups: dict[str, int] = {}
    sites: dict[str, Numbered] = {s.name: {} for s in kernels}
    for s in kernels:
        found = [(rule, choice) for rule, of in RULES.items() for choice in of(s)]
        for rule, choice in sorted(found, key=lambda pair: pair[1].first):
            here = sites[s.name].setdefault(choice.span, [])
            if not choice.inserted and any(c.same_as(choice) for _, c in here):
                continue  # two rules that mean the same
            if choice.everywhere in groups:
                here.append((groups[choice.everywhere], choice))
                continue
            table.append(row(s, rule, choice))
            here.append((len(table), choice))
            if choice.everywhere:
                groups[choice.everywhere] = len(table)
    for rule in RULES:
        if not any(m.rule == rule for m in table):
            raise Error(f"the rule for {rule} finds nothing to weaken: adapt it, or remove it")
    return distinguished(table), sites


def row(s: Source, rule: str, choice: Choice) -> Mutant:
    function, line = s.function_at(choice.first).name, s.line(choice.first)
    original = "" if choice.inserted else s.text(*choice.span)
    weakened = choice.text.replace("if ({mutated}) ", "").replace("{mutated} && ", "")
    weakened = fill(weakened, "", [s.text(*a) for a in choice.arguments]).strip()
    return Mutant(rule, s.name, line, function, choice.kind, original, weakened)


def distinguished(table: list[Mutant]) -> list[Mutant]:
    """Where a kind occurs more than once in a function, adds what is weakened, and then which."""

    def again() -> Counter[tuple[str, str, str]]:
        return Counter((m.file, m.function, m.kind) for m in table)

    uses = again()
    for i, m in enumerate(table):
        if uses[m.file, m.function, m.kind] > 1 and m.original.removesuffix("()") not in m.kind:
            table[i] = m._replace(kind=f"{m.kind}: {m.original}")
    uses, seen = again(), Counter[tuple[str, str, str]]()
    for i, m in enumerate(table):
        key = (m.file, m.function, m.kind)
        seen[key] += 1
        if uses[key] > 1:
            table[i] = m._replace(kind=f"{m.kind} ({seen[key]})")
    return table


def fill(text: str, mutated: str, arguments: list[str]) -> str:
    text = text.replace("{mutated}", mutated)
    return re.sub(r"\{(\d)\}", lambda m: arguments[int(m[1])], text)


class Writer:
    """Writes a file with its choices. The original stays on its line, because the compiler reports
    lines.
    """

    def __init__(self, source: Source, sites: Numbered) -> None:
        self.s = source
        self.sites = sites
        # A span stands before those that it holds, and what is put before it stands first.
        self.order = sorted(sites, key=lambda span: (span[0], span[1] >= span[0], -span[1]))

    def write(self, begin: int, end: int, within: tuple[int, int], alone: bool) -> str:
        """Returns the text from `begin` to `end`; `alone`: on one line, without comments."""
        text = self.s.code if alone else self.s.source
        out, at = [], begin
        for span in self.order:
            inserted = span[1] < span[0]
            first = self.s.begin_of(span[0])
            held = within[0] + inserted <= span[0] and span[1] <= within[1] and span != within
            if held and at <= first < end:
                out += [text[at:first], self.choose(span, alone)]
                at = first if inserted else self.s.end_of(span[1])
        result = "".join([*out, text[at:end]])
        return " ".join(result.split()) if alone else result

    def choose(self, span: tuple[int, int], alone: bool) -> str:
        inserted = span[1] < span[0]
        out = ""
        for n, choice in self.sites[span]:
            mutated = f"::simt::mutated({n})"
            arguments = [self.part(a, span, alone=True) for a in choice.arguments]
            text = fill(choice.text, mutated, arguments)
            out += text if inserted else f"{mutated} ? {text} : "
        return out if inserted else f"({out}{self.part(span, span, alone)})"

    def part(self, span: tuple[int, int], within: tuple[int, int], alone: bool) -> str:
        return self.write(self.s.begin_of(span[0]), self.s.end_of(span[1]), within, alone)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_if_changed(path: Path, text: str) -> None:
    """Leaves the file's time alone where nothing has changed, and with it what was built of it."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def generate(csrc: Path, out: Path) -> list[Mutant]:
    paths = sorted((csrc / "cuda").glob("*.cuh"))
    sources = {p: Source.read(p) for p in paths}
    kernels = [s for s in sources.values() if s.name != "ptx.cuh"]
    others = [Source.read(p) for p in sorted((csrc / "cuda").glob("*.cu"))]
    check(sources[csrc / "cuda" / "ptx.cuh"], kernels, others)
    table, sites = number(kernels)
    written: set[int] = set()
    for path, s in sources.items():
        if s in kernels:
            whole = (-1, len(s.tokens))
            text = Writer(s, sites[s.name]).write(0, len(s.source), whole, alone=False)
            written |= {int(n) for n in re.findall(r"simt::mutated\((\d+)\)", text)}
            head = f'#include "mutation.h"\n#line 1 {quoted(str(path))}\n'
            write_if_changed(out / "cuda" / s.name, head + text)
    for n, mutant in enumerate(table, 1):
        if n not in written:
            raise Error(f"two rules are about overlapping parts of the code, one of them {mutant}")
    rows = "".join(
        f"    {{{n}, {quoted(m.rule)}, {quoted(m.file)}, {m.line}, {quoted(m.function)},\n"
        f"     {quoted(m.kind)},\n     {quoted(m.original)},\n     {quoted(m.weakened)}}},\n"
        for n, m in enumerate(table, 1)
    )
    write_if_changed(
        out / "mutants.h",
        '// Written by mutants.py.\n#pragma once\n\n#include "mutation.h"\n\n'
        f"inline constexpr simt::Mutant kMutants[] = {{\n{rows}}};\n",
    )
    return table


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("usage: mutants.py csrc OUT_DIR")
    try:
        table = generate(Path(sys.argv[1]), Path(sys.argv[2]))
    except Error as error:
        raise SystemExit(f"mutants.py: {error}") from None
    for rule in RULES:
        print(f"{sum(m.rule == rule for m in table):4} {rule}")
    print(f"{len(table):4} mutants")


if __name__ == "__main__":
    main()
