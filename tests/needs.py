"""Optional packages of tests, those of requirements/full.txt: a test without its package is
skipped.

In an environment that a Makefile target has filled from that file, no test is skipped for a
package.
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
    """Imports a module and returns it; skips the calling test or file if it is missing."""
    if FULL:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=REASON.format(name.partition(".")[0]))
