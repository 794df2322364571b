"""Builds ringkern for the GPU that is there, and for no other.

The extension goes into a directory of its own, beside links to the modules of ``ringkern/``: what
``make build`` has made for another Python or torch stays as it is. CMake is called as setup.py does
it, but by hand: that needs no pip and no recent setuptools, and the part ``ctest`` goes on in the
same tree.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from bench.gpu import device
from bench.gpu.bounded import ROOT
from bench.gpu.part import Context, Failed

sys.path.insert(0, str(ROOT / "build_backend"))
import ringkern_build  # type: ignore[import-not-found]


def run(context: Context) -> None:
    if context.rehearsal:
        built = sorted((ROOT / "ringkern").glob("_C.*.so"))
        if not built:
            raise Failed("ringkern is not built; a rehearsal uses what `make build` has made")
        link_package(context.work / "site", built)
        return
    torch = ringkern_build.require_torch()
    cmake, ninja = (ringkern_build.find_tool(name) for name in ("cmake", "ninja"))
    if not cmake or not ninja:
        raise Failed(f"needed: {', '.join(ringkern_build.missing_tools())}")
    if not device.find_nvcc():
        raise Failed(device.NO_NVCC)
    architecture = device.architecture(context.machine)
    tree = context.work / "cmake"
    context.run(
        [
            *(cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DRK_TORCH={torch.root}",
            f"-DRK_PYTHON_INCLUDE={sysconfig.get_path('include')}",
            f"-DRK_CUDA_ARCHS={architecture}",
            *("-DRK_CUDA=ON", "-DRK_TESTS=ON"),
        ]
    )
    make(context, "_C", "ringkern_core")
    extension = tree / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    extension.unlink(missing_ok=True)
    extension.symlink_to("_C.so")
    link_package(context.work / "site", [extension])
    summary = (tree / "summary.txt").read_text().strip()
    context.note(architecture=architecture, torch=torch.version, built=summary)
    # In another process, since this one must not hold the extension that it has just replaced.
    site = str(context.work / "site")
    program = (
        f"import sys; sys.path.insert(0, {site!r}); import ringkern; i = ringkern.build_info(); "
        "print(i); i['cuda_devices'] or sys.exit('ringkern sees no GPU')"
    )
    context.run([sys.executable, "-c", program])


def make(context: Context, *targets: str) -> None:
    """Builds targets of the tree that ``run`` has configured."""
    cmake = ringkern_build.find_tool("cmake")
    jobs = str(min(len(os.sched_getaffinity(0)), 16))
    tree = context.work / "cmake"
    if not cmake or not (tree / "build.ninja").exists():
        raise Failed("nothing is configured; run the part build first")
    context.run([cmake, "--build", str(tree), "-j", jobs, "--target", *targets])


def test_targets(root: Path) -> list[str]:
    """CMake's names of the tests of the CUDA room: its rule, in CMakeLists.txt."""
    return [f"cuda_{test.stem}_cpp" for test in sorted((root / "tests/cuda").glob("*_test.cpp"))]


def link_package(site: Path, extensions: list[Path]) -> None:
    """Makes ``site/ringkern`` of links to the modules and to an extension built elsewhere."""
    package = site / "ringkern"
    package.mkdir(parents=True, exist_ok=True)
    for old in package.iterdir():
        if old.is_symlink():
            old.unlink()
    modules = [path for path in (ROOT / "ringkern").iterdir() if path.suffix in (".py", ".pyi")]
    for path in [*modules, *extensions]:
        (package / path.name).symlink_to(path)
