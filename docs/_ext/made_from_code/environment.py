"""Tables of the environment variables, from ``ringkern.config``."""

from __future__ import annotations

from ringkern.config import Variable, variables

from .markdown import code, table

SECTIONS = {
    "import": "## Read when ringkern is imported",
    "use": "## Read when needed",
    "build": "## Read by the build",
}


def sections() -> str:
    """Returns a table for each time at which variables are read."""
    return "\n\n".join(
        f"{head}\n\n{table_of([v for v in variables() if v.when == when])}"
        for when, head in SECTIONS.items()
    )


def table_of(found: list[Variable]) -> str:
    """Returns a table with a row for each variable."""
    rows = [[code(v.name), code(v.default), v.accepts, v.meaning] for v in found]
    return table(["variable", "default", "accepts", "meaning"], rows)
