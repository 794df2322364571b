"""``python -m bench.compare``: see :mod:`bench.compare.command`."""

from __future__ import annotations

import sys

from ringkern.tools.program import run_alone

from . import command

if __name__ == "__main__":
    sys.exit(run_alone("python -m bench.compare", command))
