"""The GPU resources of each kernel: registers, stack and spills, as ptxas reports them.

    python tests/cuda/resources.py            prints how the last build differs from resources.txt
    python tests/cuda/resources.py --update   rewrites resources.txt

Every build with nvcc leaves the reports beside its objects (cmake/ptxas_report.sh); nothing is
compiled for this. The build is that of `make build`, or RINGKERN_BUILD_DIR.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("resources.txt")
UPDATE = "python tests/cuda/resources.py --update"

HEAD = """\
# What each kernel takes: registers of a thread; bytes of stack frame, spill stores and spill loads.
# Made from the compiler's report; for another compiler only the limits in test_resources.py count.
#     {update}
# nvcc {nvcc}
"""


class Resources(NamedTuple):
    """A row: a kernel on an architecture, and what it takes."""

    protocol: (
        str  # or "direct", "norm", "in_place", "across", "alone", "messages", "probe": csrc/cuda
    )
    dtype: str
    # "sum", or "any": with a switch over the others; "tree": the sum in the order of core/tree.h;
    # "timed": the sum, with a clock.
    combine: str
    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


# ---- Names of kernels ----------------------------------------------------------------------------

BUILTIN = {
    "float": "f",
    "double": "d",
    "int8_t": "a",
    "uint8_t": "h",
    "int16_t": "s",
    "uint16_t": "t",
}
BUILTIN |= {"int32_t": "i", "int64_t": "l"}  # as in mangled names


def protocols() -> list[str]:
    """Returns the protocols in the order of their numbers."""
    text = (ROOT / "csrc/core/types.h").read_text()
    found = re.search(r"#define RK_PROTOCOLS\(X\) (.*)", text)
    assert found
    return re.findall(r"X\((\w+)\)", found[1])


def dtypes() -> dict[str, str]:
    """The names of the element types in mangled names, or how they begin: what each is called."""
    names = {}
    for dtype, kind in re.findall(
        r"^using (\w+)_t = (.*);", (ROOT / "csrc/reduce/dtype.h").read_text(), re.MULTILINE
    ):
        small = re.fullmatch(r"SmallFloat<(\w+), (\d+), (\d+), \w+>", kind)
        if small:
            names[f"10SmallFloatI{BUILTIN[small[1]]}Li{small[2]}ELi{small[3]}E"] = dtype
        elif kind in BUILTIN:
            names[BUILTIN[kind]] = dtype
    return names


def name_of(mangled: str) -> tuple[str, str, str]:
    """Protocol, dtype and combine."""
    if re.search(r"5probeENS0_9ProbeArgsE$", mangled):
        return "probe", "-", "-"
    if re.search(r"8messagesENS0_12MessagesArgsE$", mangled):
        return "messages", "-", "-"
    if timed := re.search(r"12timed_kernelILNS_8ProtocolE(\d+)EEEvNS0_9TimedArgsE$", mangled):
        return protocols()[int(timed[1])], "f32", "timed"
    ring = re.search(r"11ring_kernelILNS_8ProtocolE(\d+)E(?:NS_)?(.+)Lb([01])EE", mangled)
    direct = re.search(
        r"(13direct_kernel|8in_place|6across)I(?:NS_)?(.+)Lb([01])ELb([01])EE", mangled
    )
    norm = re.search(r"11norm_kernelI(?:NS_)?(.+)EEvNS0_8NormArgsE$", mangled)
    alone = re.search(r"5aloneI(?:NS_)?(.+)EEv", mangled)
    found = ring[2] if ring else direct[2] if direct else alone[1] if alone else None
    found = norm[1] if norm else found
    for begins, dtype in dtypes().items():
        if found and found.startswith(begins):
            if ring:
                return protocols()[int(ring[1])], dtype, "sum" if ring[3] == "1" else "any"
            if direct:
                name = "direct" if direct[1] == "13direct_kernel" else direct[1].lstrip("86")
                sums = "tree" if direct[4] == "1" else "sum"
                return name, dtype, sums if direct[3] == "1" else "any"
            if norm:
                return "norm", dtype, "sum"
            return "alone", dtype, "-"
    raise ValueError(f"{mangled} is not a kernel that tests/cuda/resources.py knows")


# ---- Reports -------------------------------------------------------------------------------------


def parse(report: str) -> list[Resources]:
    """Parses a report of ptxas. The resources of a called function count for the kernel."""
    rows = []
    for part in report.split("Compiling entry function ")[1:]:
        mangled, arch = re.findall(r"'([^']+)'", part)[:2]
        frames = re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        registers = re.findall(r"Used (\d+) registers", part)
        if not frames or not registers:
            raise ValueError(f"ptxas reports {mangled} in a way that is not known:\n{part}")
        most = [max(int(frame[i]) for frame in frames) for i in range(3)]
        rows.append(Resources(*name_of(mangled), arch, max(map(int, registers)), *most))
    return rows


class Build(NamedTuple):
    """A build directory: what it was built for, and the kernels' resources."""

    without_cuda: str  # a reason; or empty
    nvcc: str
    archs: list[str]
    kernels: list[Resources]


def build_directory() -> Path:
    return ROOT / (os.environ.get("RINGKERN_BUILD_DIR") or "build/dev")


def read_build(directory: Path) -> Build:
    summary = (directory / "summary.txt").read_text().strip()
    cuda = re.fullmatch(r"cpu and cuda: (.*) by nvcc (\S+)", summary)
    if not cuda:
        return Build(summary, "", [], [])
    reports = sorted(directory.rglob("*.cu.o.ptxas"))
    kernels = [row for report in reports for row in parse(report.read_text())]
    archs = [arch for arch in cuda[1].split() if arch.startswith("sm_")]
    return Build("", cuda[2], archs, kernels)


# ---- The table -----------------------------------------------------------------------------------


def line_of(cells: Iterable[object]) -> str:
    widths = (max(len(field), 6) for field in Resources._fields)
    return "  ".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths)).rstrip()


TITLES = line_of(Resources._fields)


def rows_of(kernels: Iterable[Resources]) -> list[Resources]:
    """Returns the rows in an order that does not depend on the compiler's."""
    order = [*protocols(), "direct", "norm", "in_place", "across", "alone", "messages", "probe"]
    names = [*dtypes().values(), "-"]

    def place(row: Resources) -> tuple[int, int, str, int]:
        arch = int(re.sub(r"\D", "", row.arch))
        return order.index(row.protocol), names.index(row.dtype), row.combine, arch

    return sorted(kernels, key=place)


def write_table(build: Build) -> str:
    lines = [TITLES, *map(line_of, rows_of(build.kernels))]
    return HEAD.format(update=UPDATE, nvcc=build.nvcc) + "\n".join(lines) + "\n"


def read_table(text: str) -> tuple[str, list[Resources]]:
    """Returns the compiler's version and the rows."""
    version = re.search(r"^# nvcc (\S+)$", text, re.MULTILINE)
    assert version, f"{TABLE} does not say for which nvcc it is"
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")][1:]
    return version[1], [Resources(*row[:4], *map(int, row[4:])) for row in rows]


def differences(table: Iterable[Resources], built: Iterable[Resources], archs: list[str]) -> str:
    """Returns the rows of the table that the build changes, each before its new one."""
    before = {row[:4]: row for row in table if row.arch in archs}
    after = {row[:4]: row for row in built}
    changed = []
    for row in rows_of({**before, **after}.values()):
        old, new = before.get(row[:4]), after.get(row[:4])
        if old != new:
            changed += [f"{mark} {line_of(r)}" for mark, r in (("-", old), ("+", new)) if r]
    return "\n".join([f"  {TITLES}", *changed]) if changed else ""


def main() -> None:
    directory = build_directory()
    if not (directory / "summary.txt").exists():
        raise SystemExit(
            f"There is no build in {directory}: do make build, or set RINGKERN_BUILD_DIR"
        )
    build = read_build(directory)
    if build.without_cuda:
        raise SystemExit(f"{directory} has no kernels: {build.without_cuda}")
    nvcc, table = read_table(TABLE.read_text()) if TABLE.exists() else ("none", [])
    difference = differences(table, build.kernels, build.archs)
    print(f"table of nvcc {nvcc}, built by nvcc {build.nvcc} for {' '.join(build.archs)}")
    print(difference or f"{len(build.kernels)} kernels as in the table")
    if "--update" in sys.argv[1:]:
        left_out = sorted({row.arch for row in table} - set(build.archs))
        if left_out:
            raise SystemExit(f"not written: this build would lose {', '.join(left_out)}")
        TABLE.write_text(write_table(build))


if __name__ == "__main__":
    main()
