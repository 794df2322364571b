"""One place has the version; for a release, tag, version and changelog agree."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]

# test_extension.py compares ringkern.__version__ with pyproject.toml.


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def version(release: ModuleType) -> str:
    stated: str = release.version_of((ROOT / "pyproject.toml").read_text())
    return stated


def test_version_stands_nowhere_else(version: str) -> None:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("this is no checkout: it holds what was made, too")
    listed = ["git", "grep", "--line-number", "--fixed-strings", "--word-regexp", version, "--"]
    # The changelog, results and recordings speak of the past, tests of made-up versions.
    listed += [".", ":!CHANGELOG.md", ":!bench/results", ":!docs/howto/pictures", ":!tests"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, timeout=60)
    lines = [line for line in found.stdout.splitlines() if re.search(r"(?i)version|ringkern", line)]
    assert len(lines) == 1, lines
    assert lines[0].startswith("pyproject.toml:")


def test_changelog_begins_with_what_is_not_released_or_with_this_version(
    release: ModuleType, version: str
) -> None:
    sections = release.sections((ROOT / "CHANGELOG.md").read_text())
    name, date, text = sections[0]
    assert (name, date != "") in {("Unreleased", False), (version, True)}
    assert text
    dates = [date for name, date, _ in sections if name != "Unreleased"]
    assert all(dates)
    assert dates == sorted(dates, reverse=True)
    assert len({name for name, _, _ in sections}) == len(sections)


PROJECT = '[project]\nversion = "1.2.3"\n'
CHANGES = """# Changelog

## [1.2.3] - 2026-11-21

### Added

- A kettle.

## [1.2.2] - 2026-11-20

- Nothing.

[1.2.3]: https://example.org
"""


def test_a_release_has_its_notes(release: ModuleType) -> None:
    assert release.notes("v1.2.3", PROJECT, CHANGES) == "### Added\n\n- A kettle."


@pytest.mark.parametrize(
    ("tag", "project", "changes", "said"),
    [
        ("v1.2.4", PROJECT, CHANGES, r"the tag is v1\.2\.4; pyproject\.toml says 1\.2\.3"),
        ("1.2.3", PROJECT, CHANGES, r"which is v1\.2\.3"),
        ("v1.2.3", "", CHANGES, "has no line: version"),
        ("v1.2.3", PROJECT, "# Changelog\n\n## [Unreleased]\n\nx\n", r"begins with \[Unreleased\]"),
        (
            "v1.2.3",
            PROJECT,
            CHANGES.replace("[1.2.3] - 2", "[1.2.3] 2"),
            r"begins with \[1\.2\.2\]",
        ),
        ("v1.2.3", PROJECT, CHANGES.replace(" - 2026-11-21", ""), "gives no date"),
        ("v1.2.3", PROJECT, CHANGES.replace("### Added\n\n- A kettle.\n", ""), "says nothing of"),
    ],
)
def test_a_release_needs_versions_that_agree(
    release: ModuleType, tag: str, project: str, changes: str, said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        release.notes(tag, project, changes)
