"""Parts of the reference that are generated from the code.

A page holds a fenced block of the language ``{generated}`` and the name of a part::

    ```{generated} commands
    What a file viewer shows in place of it.
    ```

Before Sphinx reads the page, the block is replaced by the Markdown that ``PARTS`` makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from . import cli, environment, errors, support

PARTS: dict[str, Callable[[], str]] = {
    "commands": cli.commands,
    "exit codes": cli.exit_codes,
    "environment": environment.sections,
    "errors": errors.tree,
    "dtypes": support.dtypes_and_ops,
    "ways": support.ways,
}

_BLOCK = re.compile(r"^```\{generated\} *([^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)


def filled(text: str) -> str:
    """Returns a page's ``text`` with its generated parts.

    Raises:
        KeyError: a block names no part.
    """
    return _BLOCK.sub(lambda block: PARTS[block[1]]().rstrip("\n"), text)


def _fill(app: Sphinx, docname: str, source: list[str]) -> None:
    try:
        source[0] = filled(source[0])
    except KeyError as error:
        raise ExtensionError(
            f"{app.env.doc2path(docname)}: there is no generated part {error}; there are "
            f"{', '.join(PARTS)}"
        ) from None


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the extension to Sphinx, which calls this."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}
