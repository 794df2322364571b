"""Links out of ``docs/``: to the repository, or to the page that shows the file.

Pages link to sources by relative path, so they work in file viewers. On the site
such a link leads to ``repository_url`` (of conf.py); where none is set, the path is shown instead.
A path or an anchor that does not exist is a warning, which ``make docs`` makes an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from markdown_links import wrong
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)


class RepositoryLinks(SphinxTransform):
    """Turns MyST's references to files that are not pages into links to the repository."""

    default_priority = 10  # before Sphinx collects downloads

    def apply(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(_is_path)):
            path, _, anchor = str(node["reftarget"]).partition("#")
            if node.get("refdomain") == "doc":  # Markdown: MyST takes other files for pages
                if path in self.env.found_docs:
                    continue
                path, anchor = f"{path}.md", node.get("reftargetid") or ""
            if path:
                self._replace(node, path, anchor)

    def _replace(self, node: nodes.Element, path: str, anchor: str) -> None:
        root = Path(self.app.srcdir).parent
        source = self.config.repository_pages.get(self.env.docname)
        base = root / source if source else Path(self.env.doc2path(self.env.docname))
        file = Path(os.path.normpath(base.parent / path))
        page = self._page(root, file)
        if page:
            node.replace_self(_to_page(node, self.env.docname, page, anchor))
            return
        why = _wrong(root, file, anchor)
        if why:
            shown = os.path.relpath(file, root)
            LOGGER.warning("link to %s: %s", shown, why, location=node, type="link")
            node.replace_self(_to_text(node, ""))
            return
        url = _url(self.config.repository_url, root, file, anchor)
        name = file.relative_to(root).as_posix()
        node.replace_self(_to_url(node, url) if url else _to_text(node, name))

    def _page(self, root: Path, file: Path) -> str | None:
        for page, source in self.config.repository_pages.items():
            if root / source == file:
                return str(page)
        docname = self.env.path2doc(str(file))
        return docname if docname in self.env.found_docs else None


def _wrong(root: Path, file: Path, anchor: str) -> str:
    if not file.is_relative_to(root):
        return "it is not in the repository"
    target = f"{file.name}#{anchor}" if anchor else file.name
    return wrong(file, target)


def _is_path(node: nodes.Node) -> bool:
    kinds = (addnodes.pending_xref, addnodes.download_reference)
    return isinstance(node, kinds) and node.get("reftype") == "myst"


def _to_page(node: nodes.Element, docname: str, page: str, anchor: str) -> nodes.Element:
    xref = addnodes.pending_xref(
        "",
        *node.children,
        refdomain="doc",
        reftarget=page,
        reftargetid=anchor or None,
        refdoc=docname,
        reftype="myst",
        refexplicit=node["refexplicit"],
    )
    xref.source, xref.line = node.source, node.line
    return xref


def _url(repository: str, root: Path, file: Path, anchor: str) -> str:
    if not repository:
        return ""
    kind = "tree" if file.is_dir() else "blob"
    path = file.relative_to(root).as_posix()
    return f"{repository.rstrip('/')}/{kind}/HEAD/{path}" + (f"#{anchor}" if anchor else "")


def _to_url(node: nodes.Element, url: str) -> nodes.Element:
    return nodes.reference("", "", *node.children, refuri=url, internal=False)


def _to_text(node: nodes.Element, name: str) -> nodes.Element:
    text = nodes.inline("", "", *node.children)
    if name and not name.endswith(node.astext().rstrip("/")):
        text += [nodes.Text(" ("), nodes.literal(name, name), nodes.Text(")")]
    return text


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository_url", "", "env", str)
    app.add_config_value("repository_pages", {}, "env", dict)
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True}
