"""Optional packages of tests, those of requirements/full.txt: a test without its package skips.

In an environment that a target of the Makefile has filled from that file, nothing skips for one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

REASON = "{} is not installed: pip install -r requirements/full.txt"
FULL = Path(sys.prefix, ".ready-full").exists()


def package(name: str) -> pytest.MarkDecorator:
    """Returns a mark that skips a test where the package is missing."""
    missing = not FULL and importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=REASON.format(name))


def module(name: str) -> Any:
    """Imports a module, or skips the test or the file that calls it."""
    if FULL:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=REASON.format(name.partition(".")[0]))
