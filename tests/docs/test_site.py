"""docs/_ext on small sites; `make docs` builds the real site."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from sphinx.cmd.build import build_main

from tests.docs.blocks import ROOT
from tests.docs.extensions import cli, docstrings, made_from_code

# ---- Links out of docs/ --------------------------------------------------------------------------

CONF = """
extensions = ["myst_parser", "repository_links"]
repository_pages = {{"changelog": "CHANGELOG.md"}}
repository_url = {url!r}
myst_heading_anchors = 2
"""

PAGE = """# Page

[`core/plan.h`](../core/plan.h), [a run](../results/1.json), [core](../core),
[there](../core/README.md#b-c), [changes](../CHANGELOG.md#one), [other](sub/other.md#deep),
[self](#page), [web](https://pytorch.org).

![a picture](../results/1.png)
"""


def make_site(root: Path, url: str = "", **pages: str) -> Path:
    files = {
        "core/plan.h": "",
        "core/README.md": "# A\n\n## B, c\n",
        "results/1.json": "",
        "results/1.png": "",
        "CHANGELOG.md": "# Changes\n\n## One\n\n[plan](core/plan.h), [home](docs/index.md)\n",
        "docs/conf.py": CONF.format(url=url),
        "docs/index.md": "# Site\n\n```{toctree}\n:glob:\n\n*\nsub/*\n```\n",
        "docs/changelog.md": "```{include} ../CHANGELOG.md\n```\n",
        "docs/sub/other.md": "# Other\n\n## Deep\n\n[up](../../core/plan.h)\n",
        **{f"docs/{name}.md": text for name, text in pages.items()},
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "docs"


def build(docs: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Returns the status of a strict build, and its output."""
    html = str(docs.parent / "html")
    status = build_main(["-q", "-W", "--keep-going", "-n", "-b", "html", str(docs), html])
    return status, capfd.readouterr().err


def hrefs(docs: Path, page: str) -> set[str]:
    html = (docs.parent / "html" / f"{page}.html").read_text()
    body = html[html.index('class="body"') : html.index('class="sphinxsidebar"')]
    return set(re.findall(r'href="([^"]+)"', body))


def test_links_to_the_repository(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    docs = make_site(tmp_path, "https://example.org/ringkern/", page=PAGE)
    assert build(docs, capfd) == (0, "")
    at = "https://example.org/ringkern"
    links = hrefs(docs, "page")
    assert {
        f"{at}/blob/HEAD/core/plan.h",
        f"{at}/blob/HEAD/results/1.json",
        f"{at}/tree/HEAD/core",
        f"{at}/blob/HEAD/core/README.md#b-c",
        "changelog.html#one",
        "sub/other.html#deep",
        "https://pytorch.org",
    } <= links
    assert f"{at}/blob/HEAD/core/plan.h" in hrefs(docs, "changelog")
    assert "index.html" in hrefs(docs, "changelog")
    assert f"{at}/blob/HEAD/core/plan.h" in hrefs(docs, "sub/other")


def test_paths_are_shown_where_there_is_no_url(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    docs = make_site(tmp_path, page=PAGE)
    assert build(docs, capfd) == (0, "")
    assert not any("core" in link or "results" in link for link in hrefs(docs, "page"))
    html = (tmp_path / "html/page.html").read_text()
    text = " ".join(re.sub(r"<[^>]+>", "", html).split())
    assert "core/plan.h, a run (results/1.json), core, there (core/README.md)" in text
    assert not list((tmp_path / "html").rglob("1.json")), "a source was copied into the site"


def test_broken_links_are_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = [
        ("../core/gone.h", "there is no gone.h"),
        ("../core/README.md#gone", "README.md has no anchor #gone"),
        ("../../outside.md", "it is not in the repository"),
        ("gone.md", "there is no gone.md"),
        ("sub/other.md#gone", "gone"),
        ("../CHANGELOG.md#gone", "gone"),
        ("#gone", "gone"),
    ]
    text = "".join(f"\n[text]({target})\n" for target, _ in broken)
    docs = make_site(tmp_path / "repository", page=f"# Page\n{text}")
    (tmp_path / "outside.md").write_text("")
    status, said = build(docs, capfd)
    assert status != 0
    for line, (_, what) in zip(range(3, 99, 2), broken):
        assert re.search(rf"page\.md:{line}: .*{re.escape(what)}", said), said


# ---- Pages made from the code --------------------------------------------------------------------


def test_every_part_has_a_page_and_every_page_its_part() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    used = re.findall(r"^```\{generated\} (.+)$", pages, re.MULTILINE)
    assert sorted(used) == sorted(made_from_code.PARTS)


def test_an_unknown_part_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = "# A\n\n```{generated} errors\ntext\n```\n"
    docs = make_site(tmp_path, page=page.replace("errors", "gone"))
    with (docs / "conf.py").open("a") as conf:
        conf.write('extensions += ["sphinx.ext.autodoc", "made_from_code"]\n')
    status, said = build(docs, capfd)
    assert status != 0
    assert f"{docs / 'page.md'}: there is no generated part 'gone'; there are commands, " in said
    (docs / "page.md").write_text(page)
    assert build(docs, capfd) == (0, "")
    assert "PeerLostError" in (tmp_path / "html/page.html").read_text()


def test_every_option_is_shown() -> None:
    text = made_from_code.PARTS["commands"]()
    for name, parser in cli.parsers().items():
        assert f"\n## {name}\n" in f"\n{text}"
        for action in parser._actions:
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
                shown = ", ".join(action.option_strings) or str(action.metavar or action.dest)
                assert re.search(rf"^\| `\[?{re.escape(shown)}", text, re.M), f"{name} {shown}"


def test_options_are_told_in_full() -> None:
    parser = argparse.ArgumentParser("ringkern do", description="Does -n of a|b.", epilog="End.")
    parser.add_argument("what", nargs="+", help="of it")
    parser.add_argument("-n", "--ranks", type=int, default=2, help="how many")
    parser.add_argument("--kind", choices=["a", "b"], default="a", help="of a call (default a)")
    parser.add_argument("--dir", default=f"{Path.home()}/x", help="where")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    lines = cli.section("do", parser).splitlines()
    assert lines[0] == "## do"
    assert lines[2] == "Does `-n` of a|b."
    assert lines[-1] == "End."
    assert "| `what [what ...]` | of it |" in lines
    assert "| `-n, --ranks RANKS` | how many (default 2) |" in lines
    assert "| `--kind KIND` | of a call (default a); one of a, b |" in lines
    assert "| `--dir DIR` | where (default ~/x) |" in lines
    assert not any("hidden" in line for line in lines)


def test_all_errors_are_in_the_tree() -> None:
    from ringkern import errors

    shown = re.findall(r"errors\.(\w+)`", made_from_code.PARTS["errors"]())
    assert sorted(shown) == sorted(
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    )


def test_the_columns_that_are_explained_are_those_that_are_printed() -> None:
    """bench/README.md has the table, which the reference shows."""
    from ringkern.tools.bench import perf, report

    settings = perf.Settings(sizes=(8,))
    machine = dict.fromkeys(report.machine(), "x")
    header = report.Report(settings, 2, machine, "today", "bench").header()
    line = next(line for line in header.splitlines() if " busbw " in line)
    page = (ROOT / "bench/README.md").read_text().split("\n## Columns\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    explained = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert explained == list(dict.fromkeys(line.strip("# ").split()))


# ---- Docstrings ----------------------------------------------------------------------------------


def test_attributes_that_share_a_description_are_set_apart() -> None:
    text = ["A.", "", "Attributes:", "    a, b: of c,", "        d: too.", "    e: f, g: h.", ""]
    text += ["Args:", "    a, b: of c."]
    assert docstrings.apart(text) == [
        *text[:3],
        "    a: of c,",
        "        d: too.",
        "    b: of c,",
        "        d: too.",
        *text[5:],
    ]
