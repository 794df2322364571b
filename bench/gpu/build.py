"""Builds ringkern for one GPU architecture: what the parts ``core`` and ``extension`` share.

CMake is called as setup.py calls it, but by hand: that needs neither pip nor a recent setuptools.
The extension goes into a directory of its own, in a package of links to ``ringkern/``: what
``make build`` has made for another Python or torch stays as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from bench.gpu import device
from bench.gpu.bounded import ROOT
from bench.gpu.part import Context, Failed, Skipped

sys.path.insert(0, str(ROOT / "build_backend"))
import ringkern_build  # type: ignore[import-not-found]

CORE_LIBRARY = "libringkern_core.a"
EXTENSION = "_C.so"
EXT_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))

# Run with -S, in which no installed ringkern, editable or not, can stand in for what is missing.
_IMPORT = """
import importlib.util, json, sys
site, names, sys.path[:] = json.loads(sys.argv[1])
import ringkern
specs = {name: importlib.util.find_spec(name) for name in names}
away = [n for n, s in specs.items() if s is None or not str(s.origin).startswith(site)]
if away: sys.exit(f"not in the package of links: {', '.join(away)}")
print(json.dumps(ringkern.build_info()))
"""


def make(context: Context, *targets: str, torch: str = "") -> None:
    """Configures the tree and builds targets.

    Args:
        targets: names of CMake targets.
        torch: directory of the torch package for the extension; "": as the tree was configured
            last, at first for the library alone.
    """
    cmake, ninja = (ringkern_build.find_tool(name) for name in ("cmake", "ninja"))
    if not cmake or not ninja:
        raise Failed(f"needed: {', '.join(missing_tools())}")
    if not device.find_nvcc():
        raise Failed(device.NO_NVCC)
    tree = context.work / "cmake"
    context.run(
        [
            *(cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            *([f"-DRK_TORCH={torch}"] if torch else []),
            f"-DRK_PYTHON_INCLUDE={sysconfig.get_path('include')}",
            f"-DRK_CUDA_ARCHS={device.architecture(context.machine)}",
            *("-DRK_CUDA=ON", "-DRK_TESTS=ON"),
        ]
    )
    jobs = str(min(len(os.sched_getaffinity(0)), 16))
    context.run([cmake, "--build", str(tree), "-j", jobs, "--target", *targets])


def product(context: Context, name: str) -> Path:
    """The path of a file that the library's build makes, here or where it was prebuilt.

    Raises:
        Failed: it is not there.
    """
    path = (Path(context.prebuilt) if context.prebuilt else context.work / "cmake") / name
    if not path.exists():
        raise Failed(f"{path} is missing; run the part core first")
    return path


def test_targets(root: Path) -> list[str]:
    """CMake's names of the tests of the CUDA room: its rule, in CMakeLists.txt."""
    return [f"cuda_{test.stem}_cpp" for test in sorted((root / "tests/cuda").glob("*_test.cpp"))]


def link_package(site: Path, extension: Path) -> None:
    """Makes ``site/ringkern`` of links to all of ``ringkern/`` and to another extension."""
    package = site / "ringkern"
    package.mkdir(parents=True, exist_ok=True)
    for old in (*site.iterdir(), *package.iterdir()):
        if old.is_symlink():
            old.unlink()
    for path in ROOT.glob("ringkern_*.py"):  # modules beside the package
        (site / path.name).symlink_to(path)
    for path in (ROOT / "ringkern").iterdir():
        if path.suffix != ".so" and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    (package / f"_C{EXT_SUFFIX}").symlink_to(extension)


def module_names(package: Path) -> list[str]:
    """The modules of a package in a source tree, as ``ringkern.hosts.calls``, without ``_C``."""
    paths = (path.relative_to(package.parent) for path in sorted(package.rglob("*.py")))
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


def import_package(site: Path) -> dict[str, object]:
    """Imports the package of links in a new process, and returns its ``build_info()``.

    Raises:
        Failed: it cannot be imported, or a module of it is missing or is another one's.
    """
    paths = [entry for entry in sys.path if entry and Path(entry).resolve() != ROOT]
    told = json.dumps([str(site), module_names(ROOT / "ringkern"), [str(site), *paths]])
    command = [sys.executable, "-S", "-c", _IMPORT, told]
    # The entry point of an installed ringkern, whose module is out of sight, is not to be loaded.
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd="/", env=env, check=False
    )
    print(done.stdout, done.stderr, sep="", flush=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise Failed(f"`import ringkern` from {site} failed: {last[0]}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def built_by_make() -> Path:
    """The extension that ``make build`` has made for this Python: a rehearsal uses it."""
    built = ROOT / "ringkern" / f"_C{EXT_SUFFIX}"
    if not built.exists():
        raise Failed(f"{built} is missing; run `make build` first, or --preflight, which compiles")
    return built


def missing_tools() -> list[str]:
    """CMake and Ninja, as far as they are missing, as requirements for pip."""
    missing: list[str] = ringkern_build.missing_tools()
    return missing


def torch_to_build_with() -> tuple[str, str]:
    """The directory of the torch package, and its version."""
    torch = ringkern_build.require_torch()
    return str(torch.root), str(torch.version)


def only_where_compiled(context: Context) -> None:
    if not context.compiles:
        raise Skipped("a rehearsal compiles nothing; --preflight does")
