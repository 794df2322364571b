"""Runs the litmus tests where herd7 is installed; everywhere, tests that they are well-formed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.litmus import herd

ALL = [form for path in herd.files() for form in herd.forms(path)]
PUBLISHED = {path.stem for path in herd.files("published")}
needs_herd = pytest.mark.skipif(shutil.which("herd7") is None, reason=herd.MISSING)
OTHER = {"Never": "Sometimes", "Sometimes": "Never"}


@needs_herd
@pytest.mark.parametrize("path", herd.files(), ids=lambda path: path.stem)
def test_herd_says_what_is_expected(path: Path) -> None:
    assert herd.failures(herd.forms(path)) == []


@needs_herd
def test_an_unexpected_answer_of_herd_is_a_failure() -> None:
    wrong = [replace(form, expected=OTHER[form.expected]) for form in ALL]
    assert len(herd.failures(wrong)) == len(ALL)
    no_program = replace(ALL[0], program=ALL[0].program.replace("w[", "w[nonsense,"))
    assert "herd7 says nothing" in herd.failures([no_program])[0]


# Fence-SC and SC-per-Location are not here: all that the tests ask follows from the other axioms.
@needs_herd
@pytest.mark.parametrize(
    ("part", "instead"),
    [
        ("empty (([W]; causality; [W]) & loc) \\ co as Coherence", ""),
        ("empty ((morally_strong & fr); (morally_strong & co)) & rmw as Atomicity", ""),
        ("acyclic rf | addr | data | rmw as NoThinAir", ""),
        ("irreflexive (rf | fr); causality as Causality", ""),
        ("includes & includes^-1", "includes"),
        ("& (release_pattern; observation; acquire_pattern)", "& 0"),
        ("([release]; ((po & loc) | id); [W & strong])", "[release]"),
        (" | ([fence]; po; [W & strong])", ""),
        (" | ([R & strong]; po; [fence])", ""),
        ("let observed = morally_strong & rf", "let observed = rf"),
        ("observed; (rmw; observed)*", "observed"),
        ("  | fence_sc_order\n", ""),
        ("  | barrier\n", ""),
        ("& tag2scope('cta))\n", ")\n"),
        ("(po | synchronizes", "(synchronizes"),
        ("| (observation; base_causality)", ""),
        ("(co_total & (morally_strong | causality | (IW * _)))+", "co_total"),
    ],
)
def test_a_published_outcome_needs_each_part_of_the_model(
    part: str, instead: str, tmp_path: Path
) -> None:
    text = herd.FOLDER.joinpath("ptx.cat").read_text()
    assert text.count(part) == 1
    model = tmp_path / "ptx.cat"
    model.write_text(text.replace(part, instead))
    published = [form for form in ALL if form.test in PUBLISHED]
    wrong = herd.failures(published, model)
    assert wrong
    assert "says nothing" not in "".join(wrong)


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
