"""The compiler's report of every kernel, against a table and against what the design needs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.cuda import resources
from tests.cuda.resources import Build, Resources

SCRIPT = resources.ROOT / "cmake/ptxas_report.sh"


@pytest.fixture(scope="module")
def build() -> Build:
    directory = resources.build_directory()
    if not (directory / "summary.txt").exists():
        pytest.skip(f"no build in {directory}: `make build` makes one")
    build = resources.read_build(directory)
    if build.without_cuda:
        pytest.skip(f"no kernels were compiled: {build.without_cuda}")
    return build


def constant(name: str) -> int:
    headers = [resources.ROOT / "csrc/cuda" / header for header in ("launch.h", "messages.h")]
    text = "".join(header.read_text() for header in headers)
    found = re.search(rf"\b{name} = (\d+);", text)
    assert found
    return int(found[1])


def listed(rows: list[Resources]) -> str:
    return "\n".join(["", resources.TITLES, *map(resources.line_of, rows)])


# ---- The build -----------------------------------------------------------------------------------


def test_every_kernel_is_reported(build: Build) -> None:
    kernels = {
        (protocol, dtype, combine)
        for protocol in [*resources.protocols(), "direct", "in_place", "across"]
        for dtype in resources.dtypes().values()
        for combine in ("sum", "any")
    }
    floats = ("f32", "f64", "f16", "bf16", "e4m3", "e5m2")
    kernels |= {(k, f, "tree") for k in ("direct", "in_place", "across") for f in floats}
    kernels |= {(protocol, "f32", "timed") for protocol in resources.protocols()}
    kernels |= {("norm", dtype, "sum") for dtype in ("f32", "f16", "bf16")}
    alone = {("alone", dtype, "-") for dtype in resources.dtypes().values()}
    for arch in build.archs:
        found = [row[:3] for row in build.kernels if row.arch == arch]
        assert len(found) == len(set(found))
        assert set(found) == kernels | alone | {("messages", "-", "-"), ("probe", "-", "-")}


def test_hopper_kernels_use_no_local_memory(build: Build) -> None:
    if "sm_90" not in build.archs:
        pytest.skip(f"built for {' '.join(build.archs)} only")
    # The open nodes of a word of 8-bit floats, in a sum by a tree, are 40 floats.
    floats8 = ("e4m3", "e5m2")
    rows = [
        row
        for row in build.kernels
        if row.arch == "sm_90" and not (row.combine == "tree" and row.dtype in floats8)
    ]
    in_local_memory = [r for r in rows if r.stack or r.spill_stores or r.spill_loads]
    assert not in_local_memory, listed(in_local_memory)


def test_blocks_are_resident_side_by_side(build: Build) -> None:
    def most(row: resources.Resources) -> int:
        names = {"across": "kMostAcrossThreads", "messages": "kMostMessageThreads"}
        name = names.get(row.protocol, "kMaxThreads")
        each = constant(name)
        if (row.protocol, row.combine) == ("in_place", "tree"):
            each = constant("kMostInPlaceThreads") // 2
        threads = each * constant("kBlocksPerSM")
        return 65536 // threads // 8 * 8  # registers are given to warps 8 a thread at a time

    too_many = [row for row in build.kernels if row.registers > most(row)]
    assert not too_many, f"more registers than there are:{listed(too_many)}"


def test_resources_are_those_of_the_table(build: Build) -> None:
    nvcc, table = resources.read_table(resources.TABLE.read_text())
    if build.nvcc != nvcc:
        pytest.skip(f"the table is for nvcc {nvcc}, this is {build.nvcc}: only limits were checked")
    difference = resources.differences(table, build.kernels, build.archs)
    assert not difference, f"\n{difference}\nIf it must be so: {resources.UPDATE}"


# ---- Reading reports -----------------------------------------------------------------------------

KERNEL = "_ZN8ringkern4cuda11ring_kernelILNS_8ProtocolE1E{}Lb{}EEEvNS0_10LaunchArgsE"
DIRECT = "_ZN8ringkern4cuda13direct_kernelI{}Lb{}ELb{}EEEvNS0_10DirectArgsE"
REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{kernel}' for 'sm_90'
ptxas info    : Function properties for {kernel}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 64 registers, used 2 barriers, 88 bytes smem
ptxas info    : Compile time = 3.185 ms
"""


@pytest.mark.parametrize(
    ("mangled", "dtype"),
    [("f", "f32"), ("h", "u8"), ("l", "i64"), ("NS_10SmallFloatItLi8ELi7ELt32640EEE", "bf16")],
)
@pytest.mark.parametrize("combine", ["any", "sum"])
def test_names(mangled: str, dtype: str, combine: str) -> None:
    name = KERNEL.format(mangled, int(combine == "sum"))
    assert resources.name_of(name) == ("ll", dtype, combine)
    name = DIRECT.format(mangled, int(combine == "sum"), 0)
    assert resources.name_of(name) == ("direct", dtype, combine)


def test_the_name_of_a_sum_by_a_tree() -> None:
    assert resources.name_of(DIRECT.format("f", 1, 1)) == ("direct", "f32", "tree")


@pytest.mark.parametrize(
    ("mangled", "dtype"), [("f", "f32"), ("NS_10SmallFloatItLi8ELi7ELt32640EEE", "bf16")]
)
def test_the_name_of_a_norm(mangled: str, dtype: str) -> None:
    name = f"_ZN8ringkern4cuda11norm_kernelI{mangled}EEvNS0_8NormArgsE"
    assert resources.name_of(name) == ("norm", dtype, "sum")


def test_the_name_of_the_probe() -> None:
    # In an unnamed namespace, which has another name in each build.
    space = "40_GLOBAL__N__5d55ee86_8_probe_cu_4087a4be"
    name = f"_ZN8ringkern4cuda{space}5probeENS0_9ProbeArgsE"
    assert resources.name_of(name) == ("probe", "-", "-")


def test_the_name_of_a_kernel_with_a_clock() -> None:
    space = "40_GLOBAL__N__5d55ee86_8_timed_cu_4087a4be"
    name = f"_ZN8ringkern4cuda{space}12timed_kernelILNS_8ProtocolE2EEEvNS0_9TimedArgsE"
    assert resources.name_of(name) == (resources.protocols()[2], "f32", "timed")


def test_an_unknown_kernel_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a kernel that"):
        resources.name_of("_ZN8ringkern4cuda5otherEv")


def test_a_report_and_its_table_say_the_same() -> None:
    kernel = KERNEL.format("f", 1)
    rows = resources.parse(REPORT.format(kernel=kernel, stack=16, stores=8, loads=12))
    assert rows == [Resources("ll", "f32", "sum", "sm_90", 64, 16, 8, 12)]
    text = resources.write_table(Build("", "13.0.88", ["sm_90"], rows))
    assert resources.read_table(text) == ("13.0.88", rows)


def test_a_function_that_is_called_counts() -> None:
    kernel = KERNEL.format("f", 1)
    report = REPORT.format(kernel=kernel, stack=0, stores=0, loads=0)
    report += "ptxas info    : Function properties for helper\n"
    report += "    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    assert resources.parse(report)[0].stack == 24


def test_a_difference_shows_the_row_before_and_after() -> None:
    row = Resources("simple", "f32", "sum", "sm_90", 64, 0, 0, 0)
    other = Resources("ll", "f32", "sum", "sm_90", 40, 0, 0, 0)
    spilled = row._replace(registers=80, stack=8, spill_stores=8)
    archs = ["sm_90"]
    assert resources.differences([row, other], [other, row], archs) == ""
    shown = resources.differences([row, other], [other, spilled], archs).splitlines()
    assert [line.split() for line in shown[1:]] == [
        ["-", "simple", "f32", "sum", "sm_90", "64", "0", "0", "0"],
        ["+", "simple", "f32", "sum", "sm_90", "80", "8", "8", "0"],
    ]
    assert resources.differences([row], [], ["sm_80"]) == ""  # not built
    assert [line[0] for line in resources.differences([row], [other], archs).splitlines()[1:]] == [
        *"-+"
    ]


# ---- Keeping reports -----------------------------------------------------------------------------

COMPILER = """\
echo "ptxas info    : Used 64 registers" >&2
echo "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads" >&2
echo "x.cu(1): warning: that" >&2
echo "said on stdout"
exit {}
"""


@pytest.mark.parametrize("status", [0, 3])
def test_the_launcher_keeps_the_report_and_passes_on_the_rest(tmp_path: Path, status: int) -> None:
    (tmp_path / "nvcc").write_text(COMPILER.format(status))
    arguments = ["sh", "nvcc", "-c", "x.cu", "-o", "x with space.o"]
    kept = tmp_path / "x with space.o.ptxas"
    kept.write_text("of the compilation before")
    run = subprocess.run(
        ["sh", SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert (run.returncode, run.stdout) == (status, "said on stdout\n")
    assert run.stderr == "x.cu(1): warning: that\n"
    if status == 0:
        assert kept.read_text().splitlines() == [
            "ptxas info    : Used 64 registers",
            "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads",
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["nvcc"] + ([kept.name] if status == 0 else [])
    )


@pytest.mark.parametrize(
    "named", [{80: "x.compute_80.ptx", 100: "x.compute_100.ptx"}, {90: "x.ptx"}], ids=len
)
def test_the_launcher_keeps_the_ptx_of_each_gpu_where_it_is_asked_to(
    tmp_path: Path, named: dict[int, str]
) -> None:
    # Named as by nvcc, among other files, behind --keep-dir.
    compiler = 'while [ "$1" != --keep-dir ]; do shift; done\necho more > "$2/x.cubin"\n'
    for arch, name in named.items():
        compiler += f'printf ".version 9.0\\n.target sm_{arch}\\n" > "$2/{name}"\n'
    (tmp_path / "nvcc").write_text(compiler)
    (tmp_path / "x.cu.o.sm_90.ptx").write_text("of a GPU that is no longer asked for")
    run = subprocess.run(
        ["sh", SCRIPT, "--keep-ptx", "sh", "nvcc", "-c", "x.cu", "-o", "x.cu.o"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (run.returncode, run.stderr) == (0, "")
    kept = {path.name: path.read_text() for path in tmp_path.glob("*.ptx")}
    assert kept == {f"x.cu.o.sm_{a}.ptx": f".version 9.0\n.target sm_{a}\n" for a in named}
    assert not (tmp_path / "x.cu.o.kept").exists()


def test_the_launcher_runs_what_makes_no_object(tmp_path: Path) -> None:
    run = subprocess.run(
        ["sh", SCRIPT, "echo", "V13"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert (run.returncode, run.stdout) == (0, "V13\n")
    assert not list(tmp_path.iterdir())
