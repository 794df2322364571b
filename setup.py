"""Builds ringkern._C with CMake and Ninja. The rest of the package is described in pyproject.toml.

torch is never imported here: the build environment of pip does not have it, and its path and
version are all that is needed.

Environment
    RINGKERN_CUDA         0: build no CUDA kernels; 1: fail if nvcc is missing; else: if it is found
    RINGKERN_CUDA_ARCHS   GPU architectures to compile for, such as "80 90 100"
    RINGKERN_BUILD_DIR    build directory of CMake; kept, so that the next build is incremental
    RINGKERN_CMAKE_ARGS   additional arguments of cmake, such as "-DRK_TESTS=ON"
    MAX_JOBS              compilers that run at a time; default: one per core
    and those of build_backend/ringkern_build.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "build_backend"))
import ringkern_build  # noqa: E402

# A source distribution is bound to no torch yet.
TORCH = None if "sdist" in sys.argv else ringkern_build.find_torch()


class Build(build):
    """The command `build`, from an empty directory: deleted modules must not be packaged again."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """The command `build_ext`, by CMake."""

    def build_extension(self, ext: Extension) -> None:
        torch = ringkern_build.require_torch()
        cmake, ninja = (ringkern_build.find_tool(name) for name in ("cmake", "ninja"))
        if not cmake or not ninja:
            needed = " ".join(f"'{tool}'" for tool in ringkern_build.missing_tools())
            raise SystemExit(f"ringkern: the build needs more tools. Do: pip install {needed}")

        name = f"{sys.implementation.cache_tag}-torch-{torch.version}"
        directory = Path(os.environ.get("RINGKERN_BUILD_DIR") or HERE / "build" / name).resolve()
        options = configuration(torch)
        forget_other_configuration(directory, options)
        source = ["-S", str(HERE), "-B", str(directory), "-G", "Ninja"]
        run(cmake, *source, f"-DCMAKE_MAKE_PROGRAM={ninja}", *options)
        jobs = os.environ.get("MAX_JOBS")
        run(cmake, "--build", str(directory), "--target", "_C", *(["-j", jobs] if jobs else []))

        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # A new file instead of writing to the old one, which a running process may have mapped.
        target.unlink(missing_ok=True)
        shutil.copy2(directory / "_C.so", target)

        ringkern_build.tell((directory / "summary.txt").read_text().strip(), torch)


def run(*command: str) -> None:
    """Runs a command. It prints its own errors, which a traceback below would hide."""
    if status := subprocess.run(command, cwd=HERE, check=False).returncode:
        raise SystemExit(f"ringkern: {command[0]} ended with {status}; see its error above.")


def configuration(torch: ringkern_build.Torch) -> list[str]:
    """Returns cmake's arguments; all of them every time, so that its cache never overrides them."""
    wanted = os.environ.get("RINGKERN_CUDA", "")
    cuda = {"": "AUTO", "0": "OFF", "1": "ON"}.get(wanted)
    if not cuda:
        raise SystemExit(f"ringkern: RINGKERN_CUDA is {wanted!r}; set it to 0 or 1, or unset it.")
    return [
        f"-DRK_TORCH={torch.root}",
        f"-DRK_PYTHON_INCLUDE={sysconfig.get_path('include')}",
        f"-DRK_CUDA={cuda}",
        f"-DRK_CUDA_ARCHS={os.environ.get('RINGKERN_CUDA_ARCHS', '')}",
        *shlex.split(os.environ.get("RINGKERN_CMAKE_ARGS", "")),
    ]


def forget_other_configuration(directory: Path, options: list[str]) -> None:
    """Removes a build with other options, another torch or another compiler.

    CMake keeps the compiler that it found first, even if the environment changes.
    """
    variables = ("CC", "CXX", "CXXFLAGS", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "LDFLAGS")
    wanted = [*options, *(f"{name}={os.environ.get(name, '')}" for name in variables)]
    wanted += [f"{tool}: {shutil.which(tool)}" for tool in ("c++", "g++", "nvcc")]
    wanted += [f"torch {ringkern_build.require_torch().version}"]
    stamp = directory / "configuration.txt"
    text = "\n".join(wanted) + "\n"
    if stamp.exists() and stamp.read_text() != text:
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    stamp.write_text(text)


setup(
    ext_modules=[Extension("ringkern._C", sources=[])],
    cmdclass={"build": Build, "build_ext": CMakeBuild},
    # The extension works with one minor version of torch, the one that it was compiled against.
    install_requires=[f"torch=={TORCH.minor}.*" if TORCH else ringkern_build.ANY_TORCH],
)
