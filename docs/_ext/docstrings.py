"""Adapts autodoc to this project's docstrings and annotations.

- Attributes that share a description, such as ``read, write: in bytes``, become one each. napoleon
  does this for parameters; it would take such attributes for one with a type.
- A class that a module imports only for annotations has no module in them. It is resolved to the
  one public class of that name.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

_SEVERAL = re.compile(r"^(\s+)(\w+(?:, \w+)+): (.*)$")


def apart(lines: list[str]) -> list[str]:
    """Returns a docstring's lines, with a description for each attribute."""
    result: list[str] = []
    within = False
    for i, line in enumerate(lines):
        if line.strip():
            within = line.strip() == "Attributes:" or (within and line.startswith(" "))
        found = _SEVERAL.match(line) if within else None
        if found is None:
            result.append(line)
            continue
        names = found[2].split(", ")
        more = _more(lines[i + 1 :], len(found[1]))
        for name in names[:-1]:
            result += [f"{found[1]}{name}: {found[3]}", *more]
        result.append(f"{found[1]}{names[-1]}: {found[3]}")
    return result


def _more(lines: list[str], indent: int) -> list[str]:
    """Returns the lines that continue a description."""
    more = []
    for line in lines:
        if len(line) - len(line.lstrip()) <= indent:
            break
        more.append(line)
    return more


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = apart(lines)


def _only_class(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    name = str(node.get("reftarget"))
    if node.get("refdomain") != "py" or node.get("reftype") != "class" or "." in name:
        return None
    domain = env.domains.python_domain
    found = [o for o in domain.objects if o.endswith(f".{name}") and not domain.objects[o].aliased]
    if len(found) != 1:
        return None
    document = str(node["refdoc"])
    builder = app.builder
    return domain.resolve_xref(env, document, builder, "class", found[0], node, text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connects the extension to Sphinx, which calls this."""
    app.connect("autodoc-process-docstring", _process, priority=100)  # before napoleon
    app.connect("missing-reference", _only_class)
    return {"parallel_read_safe": True}
