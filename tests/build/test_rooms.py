"""The checks of csrc that `make lint` runs find what they are there for, and nothing in csrc."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.build import rooms

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"


@pytest.fixture
def sizes() -> Any:
    needs.module("lizard")
    return importlib.import_module("tests.build.sizes")


def tree(directory: Path, files: dict[str, str]) -> Path:
    """Returns a csrc with the real map, a header for each that the map names, and `files`."""
    csrc = directory / "csrc"
    real = (CSRC / "README.md").read_text()
    headers = {header for room in rooms.read_map(real).values() for header in room.headers}
    headers |= {f"{room}/some.h" for room in rooms.read_map(real)}
    for path, text in ({"README.md": real} | dict.fromkeys(headers, "") | files).items():
        (csrc / path).parent.mkdir(parents=True, exist_ok=True)
        (csrc / path).write_text(text)
    return csrc


def test_csrc_keeps_to_its_map() -> None:
    assert list(rooms.violations(CSRC)) == []


def test_csrc_keeps_to_its_sizes(sizes: Any) -> None:
    assert list(sizes.violations(CSRC)) == []


def test_map_is_that_of_the_readme() -> None:
    found = rooms.read_map((CSRC / "README.md").read_text())
    assert set(found) == {path.name for path in CSRC.iterdir() if path.is_dir()}
    assert found["core"].rooms == {"core"}
    assert found["reduce"].rooms == {"core", "reduce"}
    assert found["cpu"].rooms == found["cuda"].rooms - {"cuda"} | {"cpu"}
    assert found["torch"].rooms == set(found)
    for room in ("core", "reduce", "comm"):
        assert not found[room].headers


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("reduce/a.h", '#include "core/some.h"'),
        ("cpu/a.h", '#include "reduce/some.h"'),
        ("cpu/a.h", '#include "comm/interfaces.h"'),
        ("cpu/a.cpp", "#include <sys/mman.h>"),
        ("cpu/a.cpp", "#include <immintrin.h>"),
        ("cuda/a.cuh", '#include "comm/probe.h"'),
        ("cuda/a.h", "#include <cuda_runtime_api.h>"),
        ("reduce/a.h", "#include <cuda_fp16.h>"),
        ("comm/a.cpp", "#include <vector>"),
        ("torch/a.h", '#include "cuda/some.h"'),
        ("torch/a.h", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("cuda/wait.cuh", "while (!done) rest(20);"),
        ("cuda/ptx.cuh", 'void f() { asm volatile(""); }'),
        ("core/a.h", '// #include "cpu/some.h", or asm'),
        ("core/a.h", '/* asm,\n#include "cpu/some.h" */'),
        ("comm/a.cpp", 'const char* text = "asm printf( getenv";'),
        ("comm/a.cpp", "int n = std::snprintf(text, 8, format);"),
        ("comm/a.cpp", "communicator.abort(reason); Communicator::abort();"),
        ("comm/a.cpp", "auto big = 1'000'000; int asm_free = 0;"),
    ],
)
def test_allows(tmp_path: Path, file: str, line: str) -> None:
    assert list(rooms.violations(tree(tmp_path, {file: f"{line}\n"}))) == []


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("core/a.h", '#include "reduce/some.h"', "core may not use reduce"),
        ("core/a.h", "#include <vector>", "core has no use for <vector>"),
        ("core/a.h", "#include <time.h>", "core may not use it"),
        ("core/a.h", "int* p = new int;", "allocation has no place here"),
        ("reduce/a.h", '#include "cpu/some.h"', "reduce may not use cpu"),
        ("reduce/a.h", "#include <atomic>", "reduce has no use for <atomic>"),
        ("cpu/a.h", '#include "cuda/some.h"', "cpu may not use cuda"),
        ("cpu/a.h", '#include "comm/some.h"', "cpu may not use comm"),
        ("cpu/a.h", "#include <torch/csrc/utils/pybind.h>", "cpu may not use it"),
        ("cpu/a.h", "#include <cuda_runtime.h>", "cpu may not use it"),
        ("cuda/a.cuh", '#include "cpu/some.h"', "cuda may not use cpu"),
        ("cuda/a.cuh", "#include <ATen/ATen.h>", "cuda may not use it"),
        ("cuda/a.cuh", 'void f() { asm volatile(""); }', "asm has no place here"),
        ("comm/a.h", '#include "cpu/some.h"', "comm may not use cpu"),
        ("comm/a.h", "#include <pybind11/pybind11.h>", "comm may not use it"),
        ("comm/a.h", "# include <c10/core/Device.h>", "comm may not use it"),
        ("comm/a.cpp", 'auto v = std::getenv("X");', "the environment has no place here"),
        ("torch/a.h", 'printf("x");', "printing has no place here"),
        ("torch/a.h", "std::cerr << 1;", "printing has no place here"),
        ("comm/a.cpp", "::_exit(1);", "ending the process has no place here"),
        ("comm/a.cpp", "std::abort();", "ending the process has no place here"),
        ("comm/a.cpp", 'auto t = R"(\n)"; auto v = getenv(t);', "the environment has no place"),
        ("cuda/a.cuh", "while (!done) rest(20);", "a spin has no place here"),
        ("torch/a.h", "#include <cuda_runtime_api.h>", "torch may not use it"),
        ("torch/a.h", '#include "some.h"', "there is no such file"),
        ("torch/a.h", '#include "core/gone.h"', "there is no such file"),
        ("new/a.h", "", "it is in no room"),
    ],
)
def test_refuses(tmp_path: Path, file: str, line: str, said: str) -> None:
    (found,) = rooms.violations(tree(tmp_path, {file: f"\n{line}\n"}))
    assert found.startswith(f"{file}:")
    assert said in found
    if line:
        assert found.split(":")[1] == str(2 + line.count("\n"))


def test_refuses_a_circle(tmp_path: Path) -> None:
    ring = {"cpu/a.h": '#include "cpu/b.h"', "cpu/b.h": '#include "cpu/c.h"'}
    (found,) = rooms.violations(tree(tmp_path, ring | {"cpu/c.h": '#include "cpu/a.h"'}))
    assert "cpu/a.h -> cpu/b.h -> cpu/c.h -> cpu/a.h" in found
    assert list(rooms.violations(tree(tmp_path, ring | {"cpu/c.h": ""}))) == []


def test_a_phrase_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"core may use 'a kettle'"):
        rooms.read_map("| room | what | may use | must not |\n| `core` | x | a kettle | y |\n")
    with pytest.raises(ValueError, match="no table of rooms"):
        rooms.read_map("# csrc")


BODY = "\n".join(f"  x += {i};  // }} is no end" for i in range(78))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("cpu/a.cpp", f"void f(int x) {{\n{BODY}\n  x = 0;\n}}\n", "f has 81 lines"),
        (
            "cuda/a.cuh",
            f"struct S {{\n  template <class T>\n  RK_DEVICE auto g(T x)\n"
            f"      -> decltype(x) {{\n{BODY}\n  }}\n}};\n",
            "g has 81 lines",
        ),
        ("torch/a.cpp", f"PYBIND11_MODULE(_C, m) {{\n\n{BODY}\n}}\n", "has 81 lines"),
    ],
)
def test_refuses_what_is_long(tmp_path: Path, file: str, text: str, said: str, sizes: Any) -> None:
    (found,) = sizes.violations(tree(tmp_path, {file: text}), {})
    assert found.startswith(f"{file}:")
    assert said in found


def test_allows_what_just_fits_or_is_excused(tmp_path: Path, sizes: Any) -> None:
    csrc = tree(tmp_path, {"cpu/a.cpp": f"void f(int x) {{\n{BODY}\n}}\n" + "int y;\n" * 1000})
    assert list(sizes.violations(csrc, {})) == []
    long = tree(tmp_path / "long", {"cpu/a.cpp": f"void f(int x) {{\n{BODY}\n\n}}\n"})
    assert list(sizes.violations(long, {"cpu/a.cpp:f": "why"})) == []
    (stale,) = sizes.violations(csrc, {"cpu/a.cpp:f": "why"})
    assert "needs no excuse any more" in stale
