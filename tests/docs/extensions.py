"""Access to docs/_ext for tests: it is no package, but a folder that docs/conf.py adds."""

from __future__ import annotations

import sys

from tests.docs.blocks import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import docstrings
import made_from_code
import markdown_links
from made_from_code import cli

__all__ = ["cli", "docstrings", "made_from_code", "markdown_links"]
