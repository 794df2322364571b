"""Which way ``"auto"`` means on this machine, and how that is found out.

``tables`` makes rows of costs; ``cache`` keeps what ``tune`` has measured (``trials``) and fitted
(``fit``); ``tuning`` is its text.
"""

from __future__ import annotations

from .tables import (
    DEVICES,
    SAMPLES,
    SIZES,
    Costs,
    Rows,
    costs,
    forget,
    rows_for,
    rows_of,
    shipped,
    source,
    table,
    way_of,
)

__all__ = [
    "DEVICES",
    "SAMPLES",
    "SIZES",
    "Costs",
    "Rows",
    "costs",
    "forget",
    "rows_for",
    "rows_of",
    "shipped",
    "source",
    "table",
    "way_of",
]
