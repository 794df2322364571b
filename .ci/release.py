"""Checks that a tag, pyproject.toml and CHANGELOG.md name the same version; prints its notes.

python .ci/release.py v1.2.3
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version_of(project: str) -> str:
    """Returns the version in pyproject.toml, from the line that CMakeLists.txt also reads."""
    found = re.search(r'^version = "([^"]+)"$', project, re.MULTILINE)
    if not found:
        raise SystemExit('pyproject.toml has no line: version = "..."')
    return found[1]


def sections(changelog: str) -> list[tuple[str, str, str]]:
    """Returns name, date ("" if it has none) and text of each section, the newest first."""
    parts = re.split(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", changelog, flags=re.MULTILINE)
    # A link definition at the end belongs to no section.
    texts = [re.sub(r"^\[[^\]]+\]: .*$", "", text, flags=re.MULTILINE) for text in parts[3::3]]
    names, dates = parts[1::3], [date or "" for date in parts[2::3]]
    return list(zip(names, dates, (text.strip() for text in texts)))


def notes(tag: str, project: str, changelog: str) -> str:
    """Returns the section of the changelog for `tag`.

    Raises:
        SystemExit: a file names another version, or the section is empty.
    """
    version = version_of(project)
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}; pyproject.toml says {version}, which is v{version}")
    found = sections(changelog)
    name, date, text = found[0] if found else ("", "", "")
    if name != version:
        raise SystemExit(
            f"CHANGELOG.md begins with [{name}]; a release begins with: ## [{version}] - YYYY-MM-DD"
        )
    if not date:
        raise SystemExit(f"CHANGELOG.md gives no date: ## [{version}] - YYYY-MM-DD")
    if not text:
        raise SystemExit(f"CHANGELOG.md says nothing of {version}")
    return text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(
        notes(
            sys.argv[1],
            (ROOT / "pyproject.toml").read_text(),
            (ROOT / "CHANGELOG.md").read_text(),
        )
    )
