"""README.md, and a page of docs/, match the code and the results."""

from __future__ import annotations

import re
from statistics import geometric_mean

import pytest

from tests.docs import generated
from tests.docs.blocks import ROOT
from tests.docs.generated import ALSO, PAGE, PAGES, RUN, TABLES, filled


@pytest.mark.parametrize("name", TABLES)
def test_a_page_has_the_table_as_it_is(name: str) -> None:
    text = f"<!-- generated: {name} -->\n{TABLES[name]()}<!-- end -->"
    assert sum(text in page.read_text() for page in PAGES) == 1, (
        "python -m tests.docs.generated --update"
    )


def test_room_is_filled_and_nothing_else() -> None:
    room = "a\n<!-- generated: commands -->\nold\n<!-- end -->\nb\n"
    new = filled(room)
    assert new.startswith("a\n<!-- generated: commands -->\n| command |")
    assert new.endswith("<!-- end -->\nb\n")
    assert filled(new) == new
    with pytest.raises(KeyError, match="nonsense"):
        filled(room.replace("commands", "nonsense"))


def test_an_old_page_is_noticed(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path_factory.mktemp("page") / "README.md"
    page.write_text("<!-- generated: commands -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(generated, "PAGES", [page])
    assert generated.main([]) == 1
    assert "--update" in capsys.readouterr().out
    assert generated.main(["--update"]) == 0
    assert generated.main([]) == 0
    assert "old" not in page.read_text()


def test_at_most_ten_variables() -> None:
    assert 1 <= generated.environment().count("`RINGKERN_") <= 10


def test_the_readme_agrees_with_the_quoted_run() -> None:
    """Checks the sentence 'less time than any of them at all 26 sizes of that run, from Python and
    from C'.
    """
    text = " ".join(PAGE.read_text().split())
    for file in (RUN, ALSO):
        rows = generated._run(file)["rows"]
        assert f"less time than any of them at all {len(rows)} sizes of that run, from Py" in text
        compared = [each for row in rows for each in row["comparisons"]]
        assert len(compared) == 4 * len(rows)
        assert max(each["time_over_peer"] for each in compared) < 1
        assert file in text
    plain = [each for row in generated._run()["rows"] for each in row["comparisons"][:2]]
    means = [
        geometric_mean(each["time_over_peer"] for each in plain if each["mode"] == mode)
        for mode in ("py", "c")
    ]
    assert "({:.2f} and {:.2f} of the best other's, the geometric mean)".format(*means) in text
    assert RUN.replace(".json", ".png") in text


def test_the_citation_is_the_same_in_both_places() -> None:
    [cited] = re.findall(r"^ *title += \{(.*)\},$", PAGE.read_text(), re.MULTILINE)
    [title] = re.findall(r'^title: "(.*)"$', (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == title
