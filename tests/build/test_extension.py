"""The built extension as a file: its linked libraries, and the separation of its parts for other
CPUs.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch  # noqa: F401  (loads the libraries that the extension needs)

import ringkern
import ringkern._C
from tests.cuda.resources import build_directory

EXTENSION = Path(ringkern._C.__file__)
ROOT = Path(__file__).resolve().parents[2]


def output_of(*command: str | Path, directory: str | None = None) -> str:
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_links_torch_but_none_of_its_cuda_libraries() -> None:
    """One source serves CPU-only and CUDA torch, and imports on a machine without a GPU."""
    entries = output_of("readelf", "--dynamic", EXTENSION)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\.so", entries))
    system = {"libstdc++", "libgcc_s", "libm", "libc", "libdl", "librt", "libpthread"}
    assert needed - system - {"ld-linux-x86-64", "ld-linux-aarch64"} <= {
        "libc10",
        "libtorch",
        "libtorch_cpu",
        "libtorch_python",
    }
    assert "RPATH" not in entries
    assert "RUNPATH" not in entries


def test_exports_no_cuda_runtime() -> None:
    """The static CUDA runtime inside must not answer for the one that torch has loaded."""
    symbols = output_of("nm", "--dynamic", EXTENSION)
    assert re.search(r" [TW] PyInit__C\b", symbols)
    assert not re.search(r"\bcuda[A-Z]\w*", symbols)


def test_version_is_that_of_pyproject() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert version
    assert ringkern.__version__ == version.group(1)


@pytest.mark.slow
def test_compiles_without_cuda() -> None:
    """A machine without nvcc builds the same sources; only their syntax and names are checked."""
    entries = json.loads((build_directory() / "compile_commands.json").read_text())
    units = [entry for entry in entries if "ringkern_torch.dir/Unity/" in entry["file"]]
    assert units
    for unit in units:
        command = shlex.split(unit["command"])
        without = [argument.replace("RK_WITH_CUDA=1", "RK_WITH_CUDA=0") for argument in command]
        end = without.index("-o")
        del without[end : end + 2]
        output_of(*without, "-fsyntax-only", "-O0", directory=unit["directory"])


AVX2 = "-mavx2 -mfma -mf16c"
AVX512 = f"{AVX2} -mavx512f -mavx512bw -mavx512dq -mavx512vl"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one copy of simd.cpp on this CPU")
@pytest.mark.parametrize(("isa", "flags"), [("avx2", AVX2), ("avx512", AVX512)])
def test_code_for_newer_cpus_stays_in_its_namespace(isa: str, flags: str, tmp_path: Path) -> None:
    """An inline function that simd.cpp shares with other files would be emitted for each, and the
    linker keeps one at will: a copy with AVX-512 in it would then run on every CPU."""
    compiler = shutil.which("c++") or pytest.skip("no c++ on PATH to compile simd.cpp with")
    compile = [compiler, "-std=c++20", "-O1", *flags.split(), "-c"]
    names = [f"-DRK_ISA={isa}", f'-DRK_ISA_NAME="{isa}"', f"-I{ROOT / 'csrc'}"]
    target = tmp_path / "simd.o"
    output_of(*compile, *names, ROOT / "csrc" / "cpu" / "simd.cpp", "-o", target)
    symbols = output_of("nm", "--demangle", "--defined-only", target)
    shared = re.findall(r"^\S+ [WVu] (.+)$", symbols, re.MULTILINE)
    assert [name for name in shared if f"::{isa}::" not in name] == []
