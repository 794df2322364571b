"""herd7 says of the litmus tests what they expect, where it is installed; they are well-formed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.litmus import herd

ALL = [form for path in herd.files() for form in herd.forms(path)]
needs_herd = pytest.mark.skipif(shutil.which("herd7") is None, reason=herd.MISSING)
OTHER = {"Never": "Sometimes", "Sometimes": "Never"}


@needs_herd
@pytest.mark.parametrize("path", herd.files(), ids=lambda path: path.stem)
def test_herd_says_what_is_expected(path: Path) -> None:
    assert herd.failures(herd.forms(path)) == []


@needs_herd
def test_what_herd_does_not_say_is_a_failure() -> None:
    wrong = [replace(form, expected=OTHER[form.expected]) for form in ALL]
    assert len(herd.failures(wrong)) == len(ALL)
    no_program = replace(ALL[0], program=ALL[0].program.replace("w[", "w[nonsense,"))
    assert "herd7 says nothing" in herd.failures([no_program])[0]


@pytest.mark.parametrize("path", herd.files("protocols"), ids=lambda path: path.stem)
def test_a_protocol_has_a_form_that_is_forbidden_and_a_good_outcome(path: Path) -> None:
    forms = herd.forms(path)
    assert {(form.name, form.expected) for form in forms} >= {(herd.GOOD, "Sometimes")}
    assert any(form.expected == "Never" for form in forms)
    assert len({form.program for form in forms}) == len(forms)
    assert herd.title(path)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [("P1 f[sc,sys] =>", "0 places"), ("P0 x", "no edit"), ("exit => 1", "0 places")],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: str, reason: str, tmp_path: Path) -> None:
    text = herd.FOLDER.joinpath("published", "MP.litmus").read_text()
    path = tmp_path / "MP.litmus"
    path.write_text(text.replace("as published", f"as published: {edit}"))
    with pytest.raises(ValueError, match=reason):
        herd.forms(path)


def test_without_herd_it_says_why_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert herd.main([]) == 0
    assert capsys.readouterr().out == f"skipped: {herd.MISSING}\n"
