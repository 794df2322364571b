"""Runs before torch and the extension are loaded, and decides whether they are."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

# Run in the clone that ringkern was installed from: ringkern is on no package index.
REBUILD = "pip install --force-reinstall --no-deps -e ."


def by_command_line() -> bool:
    """Returns whether ``python -m ringkern``, or the script ``ringkern``, imports the package.

    Not true in the processes that these start.
    """
    if not 0 < len(sys.argv) <= len(sys.orig_argv):
        return False
    program = sys.orig_argv[-len(sys.argv)]  # before its arguments
    if sys.argv[0] == "-m":  # as long as Python looks for the module
        return program in ("ringkern", "-mringkern")
    return sys.argv[0] == program and Path(program).name == "ringkern"


def load() -> None:
    """Loads the modules that ``import ringkern`` loads in a program.

    Raises:
        Exception: any error of that import; ImportError if torch or the extension do not fit,
            ValueError if a variable of the environment has a wrong value.
    """
    package, api = sys.modules["ringkern"], importlib.import_module("ringkern.api")
    for name in (*api.__all__, "__all__", "__version__"):
        setattr(package, name, getattr(api, name))


def version() -> str:
    """Returns the version of the installed ringkern; needs neither torch nor the extension."""
    try:
        return importlib.metadata.version("ringkern")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
