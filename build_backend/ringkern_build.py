"""PEP 517 build backend: setuptools, plus the search for the torch that ringkern will run with.

The extension works with one minor version of torch, the one whose headers it was compiled against.
A plain ``requires = ["torch"]`` would let pip fetch the newest torch into its build environment,
gigabytes of it, and compile against that instead of the one that is installed. pip does run these
hooks with the user's own interpreter, and only hides its packages from ``sys.path``; so the
installed torch is looked up by path, and nothing is asked for when it is there.

Environment
    RINGKERN_TORCH_SITE   directory that holds ``torch/``; looked at first, and alone
    RINGKERN_FETCH_TORCH  1: where no torch is found, let the installer fetch one to build against
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLDEST_TORCH = (2, 11)
ANY_TORCH = "torch>=2.11"
OLDEST_SETUPTOOLS = 77
TOOLS = {"cmake": (3, 25), "ninja": (1, 10)}


@dataclass(frozen=True)
class Torch:
    """An installed torch: its package directory, its version, as in "2.13.0+cpu", and its CUDA's,
    as in "13.0", or ""."""

    root: Path
    version: str
    cuda: str = ""

    @property
    def minor(self) -> str:
        """Major and minor version, which the compiled extension is bound to: "2.13"."""
        return ".".join(self.version.split(".")[:2])


# ---- torch ---------------------------------------------------------------------------------------


def _torch_in(directory: Path) -> Torch | None:
    """The torch installed in `directory`; a bare source checkout of that name does not count."""
    root = directory / "torch"
    if not (root / "lib" / "libc10.so").exists():
        return None
    text = (root / "version.py").read_text()
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
    return Torch(root, found[1], cuda[1] if cuda else "") if found else None


def _sees_base_packages() -> bool:
    """Returns whether this interpreter sees packages outside its virtual environment, if any."""
    if sys.prefix == sys.base_prefix:
        return True
    try:
        settings = Path(sys.prefix, "pyvenv.cfg").read_text()
    except OSError:
        return False
    wanted = r"^include-system-site-packages\s*=\s*true"
    return re.search(wanted, settings, re.MULTILINE | re.IGNORECASE) is not None


def _package_directories() -> Iterator[Path]:
    """Where this interpreter keeps packages, those that build isolation hides included."""
    yield from (Path(entry) for entry in sys.path if entry)
    yield Path(sysconfig.get_path("purelib"))
    yield Path(sysconfig.get_path("platlib"))
    if _sees_base_packages():
        yield from (Path(entry) for entry in site.getsitepackages([sys.base_prefix]))
        yield Path(site.getusersitepackages())


def find_torch(environ: Mapping[str, str] = os.environ) -> Torch | None:
    """The torch to compile against, or None.

    Raises SystemExit if RINGKERN_TORCH_SITE holds none, or if the one found is too old.
    """
    chosen = environ.get("RINGKERN_TORCH_SITE")
    directories = iter([Path(chosen)]) if chosen else _package_directories()
    torch = next(filter(None, map(_torch_in, directories)), None)
    if chosen and not torch:
        raise SystemExit(f"ringkern: RINGKERN_TORCH_SITE={chosen} holds no installed torch/.")
    if torch and tuple(int(part) for part in torch.minor.split(".")) < OLDEST_TORCH:
        raise SystemExit(
            f"ringkern needs {ANY_TORCH}; {torch.root} is {torch.version}. Upgrade torch first."
        )
    return torch


def _builds_in_own_environment() -> bool:
    """True under uv and `python -m build`: a throw-away environment with no way back to the user's.

    pip keeps the user's interpreter and puts its build requirements elsewhere, so that setuptools
    does not lie under sys.prefix.
    """
    import setuptools

    return Path(setuptools.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())


NO_TORCH = f"""
ringkern is compiled against the torch that it will run with, and there is none in
    {sys.prefix}
uv and `python -m build` build in an environment of their own, which hides the torch you have.
Install torch ({ANY_TORCH}) first if you have none, then do one of

    uv pip install --no-build-isolation .
    pip install --no-build-isolation .
    python -m build --no-isolation

or set one of these and repeat what you did:

    RINGKERN_TORCH_SITE=DIR   the site-packages directory of your environment, with torch/ in it
    RINGKERN_FETCH_TORCH=1    fetch the newest torch to build against (gigabytes); ringkern then
                              requires that version of torch wherever it is installed
"""


def torch_requirement(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the build requirements for torch: none if it is installed.

    Raises SystemExit with NO_TORCH where a fetched torch would not be the one that is used later.
    """
    if find_torch(environ):
        return []
    if environ.get("RINGKERN_FETCH_TORCH") != "1" and _builds_in_own_environment():
        raise SystemExit(NO_TORCH)
    shout("no torch is installed: the newest is fetched to build against, which can take a while")
    return [ANY_TORCH]


def require_torch() -> Torch:
    """The torch to compile against. Raises SystemExit where there is none."""
    torch = find_torch()
    if not torch:
        raise SystemExit(NO_TORCH)
    return torch


# ---- tools ---------------------------------------------------------------------------------------


def find_tool(name: str) -> str | None:
    """Path of `name`, "cmake" or "ninja", if it is there and new enough.

    The interpreter's own directory counts too, for virtual environments that are not activated.
    """
    own = str(Path(sys.executable).parent)
    for path in (os.environ.get("PATH", os.defpath), own, sysconfig.get_path("scripts")):
        tool = shutil.which(name, path=path)
        if tool and _version_of(tool) >= TOOLS[name]:
            return tool
    return None


def _version_of(tool: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    found = re.search(r"(\d+)\.(\d+)", answer.stdout)
    return tuple(int(part) for part in found.groups()) if found else ()


def missing_tools() -> list[str]:
    """Requirements for the tools that this machine does not have."""
    wanted = {name: ".".join(map(str, version)) for name, version in TOOLS.items()}
    return [f"{name}>={version}" for name, version in wanted.items() if not find_tool(name)]


def shout(message: str) -> None:
    """Say what a user must not miss, in the build's log and on the terminal.

    pip shows the log of a build only when it fails or with -v, hence the terminal itself.
    """
    line = f"ringkern: {message}"
    print(f"\n{'*' * 80}\n{line}\n{'*' * 80}\n", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        try:
            with open("/dev/tty", "w", encoding="utf-8") as terminal:
                terminal.write(f"\n{line}\n")
        except OSError:
            pass  # no terminal: a container build, a service


def tell(summary: str, torch: Torch) -> None:
    """Say what was built, from CMake's summary; aloud where it is not what a user expects."""
    nvcc = re.search(r"by nvcc ((\d+)\S*)", summary)
    if not nvcc:
        shout(f"built WITHOUT CUDA kernels, {summary}")
    elif torch.cuda and torch.cuda.split(".")[0] != nvcc[2]:
        shout(
            f"nvcc is {nvcc[1]}, and torch {torch.version} has CUDA {torch.cuda}: the kernels need "
            f"a driver for CUDA {nvcc[2]}. To build with torch's CUDA, set CUDACXX to its nvcc"
        )
    else:
        print(f"ringkern: built for {summary}", file=sys.stderr)


# ---- hooks ---------------------------------------------------------------------------------------


def _setuptools() -> Any:
    """setuptools' own backend, once its version is known to read pyproject.toml."""
    import setuptools
    import setuptools.build_meta

    if int(setuptools.__version__.split(".")[0]) < OLDEST_SETUPTOOLS:
        raise SystemExit(
            f"ringkern needs setuptools>={OLDEST_SETUPTOOLS} to build; this environment has "
            f"{setuptools.__version__}. Do: pip install 'setuptools>={OLDEST_SETUPTOOLS}'"
        )
    return setuptools.build_meta


def _requirements(config_settings: Any = None) -> list[str]:
    return torch_requirement() + missing_tools()


get_requires_for_build_wheel = _requirements
get_requires_for_build_editable = _requirements


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """Nothing: a source distribution is the same for every torch."""
    return []


def _with_torch(hook: str) -> Any:
    def run(*arguments: Any, **options: Any) -> Any:
        require_torch()
        return getattr(_setuptools(), hook)(*arguments, **options)

    return run


prepare_metadata_for_build_wheel = _with_torch("prepare_metadata_for_build_wheel")
prepare_metadata_for_build_editable = _with_torch("prepare_metadata_for_build_editable")
build_wheel = _with_torch("build_wheel")
build_editable = _with_torch("build_editable")


def build_sdist(sdist_directory: str, config_settings: Any = None) -> Any:
    """Delegates to setuptools; needs no torch."""
    return _setuptools().build_sdist(sdist_directory, config_settings)


if __name__ == "__main__":  # for the Makefile, which installs without isolation
    print(*missing_tools())
