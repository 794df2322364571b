"""The variables of the environment, from ``ringkern.config``."""

from __future__ import annotations

from ringkern.config import Variable, variables

from .markdown import code, table

SECTIONS = {
    "import": "## Read when ringkern is imported",
    "use": "## Read when needed",
    "build": "## Read by the build",
}


def sections() -> str:
    """A table for each time at which variables are read."""
    return "\n\n".join(
        f"{head}\n\n{table_of([v for v in variables() if v.when == when])}"
        for when, head in SECTIONS.items()
    )


def table_of(found: list[Variable]) -> str:
    """A row for each variable."""
    rows = [[code(v.name), code(v.default), v.accepts, v.meaning] for v in found]
    return table(["variable", "default", "accepts", "meaning"], rows)
