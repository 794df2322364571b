"""Writes the text of docs/reference/torch_distributed.md."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from tests.torch.support.names import FUNCTIONAL, WITHOUT_ROW
from tests.torch.support.nccl import FACTS, PAGE, TABLE, Fact
from tests.torch.support.registry import Outcome, Row
from tests.torch.support.rows import SIZE, Outcomes, Results

TEMPLATE = Path(__file__).with_name("template.md")
HEAD = "\n".join(
    (
        "| function | case | Gloo | NCCL, documented | ringkern | difference |",
        "|---|---|---|---|---|---|",
    )
)
LOCAL = "Without communication"


def torch_version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


# ---- Cells ---------------------------------------------------------------------------------------


def code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`"


def cell(outcomes: Outcomes) -> str:
    """Returns the cell of a backend, for a row with one case or with many."""
    if list(outcomes) == [""]:
        (outcome,) = outcomes.values()
        if outcome.verdict == "yes":
            return f"yes: {outcome.text}" if outcome.text else "yes"
        return refusal(outcome)
    lacking = {case: outcome for case, outcome in outcomes.items() if outcome.verdict != "yes"}
    if not lacking:
        return "all"
    reasons = ", ".join(dict.fromkeys(map(reason, lacking.values())))
    if len(lacking) == len(outcomes):
        return f"none ({reasons})"
    return f"all but {', '.join(lacking)} ({reasons})"


def refusal(outcome: Outcome) -> str:
    return f"no: {reason(outcome)}" if outcome.verdict == "no" else reason(outcome)


def reason(outcome: Outcome) -> str:
    return code(outcome.text) if outcome.verdict == "no" else f"**{outcome.verdict}**"


def documented(row: Row) -> str:
    if row.section == LOCAL:
        return "-"
    fact = FACTS.get(row.key)
    if not fact:
        return ""
    where = fact.source if fact.source in (TABLE, PAGE) else "docstring"
    says = fact.says or fact.verdict
    if fact.but:
        says = f"all but {', '.join(fact.but)}"
    if fact.only:
        says = f"{', '.join(fact.only)}: {says}"
    return f"{says} ({where})"


# ---- Differences ---------------------------------------------------------------------------------


def known(fact: Fact | None, case: str) -> bool | None:
    """Returns whether NCCL supports a case; None where its documentation does not tell."""
    if not fact or fact.verdict == "generally" or (fact.only and case not in fact.only):
        return None
    return fact.verdict == "yes" and case not in fact.but


def difference(gloo: bool, nccl: bool | None, ringkern: bool) -> str:
    if gloo and ringkern:
        return "not NCCL" if nccl is False else ""
    if not gloo and not ringkern:
        return "only NCCL" if nccl else "neither Gloo nor ringkern"
    one, other = ("Gloo", "ringkern") if gloo else ("ringkern", "Gloo")
    return {True: f"not {other}", False: f"only {one}", None: f"{one}, not {other}"}[nccl]


def differs(row: Row, results: Results) -> str:
    fact = FACTS.get(row.key)
    kinds: dict[str, list[str]] = {}
    for case in row.cases:
        gloo, ringkern = (results[b][row.key][case].verdict == "yes" for b in ("gloo", "ringkern"))
        kinds.setdefault(difference(gloo, known(fact, case), ringkern), []).append(case)
    # Cells list the cases.
    words = [k if len(c) == len(row.cases) else f"{k}: some" for k, c in kinds.items() if k]
    return "; ".join([*words, *([row.remark] if row.remark else [])])


# ---- The page ------------------------------------------------------------------------------------


def cells_of(row: Row, results: Results) -> tuple[str, ...]:
    """Returns the cells of a row, without its functions and its feature."""
    gloo, ringkern = (cell(results[backend][row.key]) for backend in ("gloo", "ringkern"))
    return (gloo, documented(row), ringkern, differs(row, results))


def lines(rows: list[Row], results: Results) -> Iterator[str]:
    """Yields the lines of a section; rows with equal cells share one.

    Features of one function share a line, and so do functions that have one line each.
    """
    functions: dict[tuple[str, ...], dict[tuple[str, ...], list[str]]] = {}
    for row in rows:
        features = functions.setdefault(row.names, {})
        features.setdefault(cells_of(row, results), []).append(row.feature)
    alike: dict[tuple[str, str], list[str]] = {}
    for names, features in functions.items():
        text = "\n".join(
            " | ".join(["; ".join(f or "call" for f in of) if any(of) else "", *cells]) + " |"
            for cells, of in features.items()
        )
        several = "" if len(features) == 1 else names[0]
        alike.setdefault((text, several), []).extend(names)
    for (text, _), names in alike.items():
        first, *others = text.split("\n")
        shown = ", ".join(code(name.removeprefix(FUNCTIONAL)) for name in names)
        yield from (f"| {shown} | {first}", *(f"|  | {other}" for other in others))


def section(title: str, rows: list[Row], results: Results) -> str:
    return "\n".join([f"## {title}", "", HEAD, *lines(rows, results)])


def has(row: Row, outcomes: Outcomes) -> bool:
    return all(outcome.verdict == "yes" for outcome in outcomes.values())


def summary(rows: list[Row], results: Results) -> str:
    count = {b: sum(has(row, results[b][row.key]) for row in rows) for b in results}
    less = [
        f"- {', '.join(map(code, row.names))}"
        + (f", {row.feature}" if row.feature else "")
        + (f": {row.remark}" if row.remark else "")
        for row in rows
        for phrase in [differs(row, results)]
        if "not ringkern" in phrase or "only Gloo" in phrase
    ]
    full, gloo = count["ringkern"], count["gloo"]
    text = f"ringkern supports {full} of {len(rows)} cases in full, Gloo {gloo}."
    if not less:
        return f"{text} ringkern lacks none that Gloo or NCCL is known to support."
    return "\n".join([f"{text} Supported by Gloo and not by ringkern:", "", *less])


def left_out() -> str:
    return "\n".join(
        f"- {what}: {', '.join(code(name) for name in names.split())}"
        for what, names in WITHOUT_ROW.items()
    )


def page(rows: Iterable[Row], results: Results) -> str:
    rows = list(rows)
    titles = list(dict.fromkeys(row.section for row in rows))
    tables = [section(t, [row for row in rows if row.section == t], results) for t in titles]
    template = string.Template(TEMPLATE.read_text())
    return template.substitute(
        torch=torch_version(),
        size=SIZE,
        summary=summary(rows, results),
        tables="\n\n".join(tables),
        left_out=left_out(),
    )
