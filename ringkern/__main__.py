"""``python -m ringkern``: :mod:`ringkern.tools`."""

from __future__ import annotations

import sys

from .tools import main

if __name__ == "__main__":
    sys.exit(main())
