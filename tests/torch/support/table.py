"""Renders docs/reference/torch_distributed.md."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path

import torch

from tests.torch.support.names import FUNCTIONAL, WITHOUT_ROW
from tests.torch.support.nccl import FACTS, PAGE, TABLE, Fact
from tests.torch.support.registry import Outcome, Row
from tests.torch.support.rows import SIZE, Outcomes, Results

TEMPLATE = Path(__file__).with_name("template.md")
HEAD = (
    "| function | | Gloo | NCCL, documented | ringkern | what differs |\n|---|---|---|---|---|---|"
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
        return "not documented"
    where = fact.source if fact.source in (TABLE, PAGE) else "docstring"
    says = fact.says or fact.verdict
    if fact.but:
        says = f"all but {', '.join(fact.but)}"
    if fact.only:
        says = f"{', '.join(fact.only)}: {says}"
    return f"{says} ({where})"


# ---- Differences ---------------------------------------------------------------------------------


def known(fact: Fact | None, case: str) -> bool | None:
    """Returns NCCL's cell, if the documentation has a statement about NCCL."""
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
    words = [f"{kind}: {', '.join(c)}" if c != [""] else kind for kind, c in kinds.items() if kind]
    return "; ".join([*words, *([row.remark] if row.remark else [])])


# ---- The page ------------------------------------------------------------------------------------


def line(row: Row, results: Results, first: bool) -> str:
    names = ", ".join(code(name.removeprefix(FUNCTIONAL)) for name in row.names) if first else ""
    cells = [names, row.feature]
    cells += [cell(results["gloo"][row.key]), documented(row), cell(results["ringkern"][row.key])]
    return "| " + " | ".join([*cells, differs(row, results)]) + " |"


def section(title: str, rows: list[Row], results: Results) -> str:
    lines, before = [], None
    for row in rows:
        lines.append(line(row, results, row.names != before))
        before = row.names
    return "\n".join([f"## {title}", "", HEAD, *lines])


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
    text = f"Gloo has {count['gloo']} of {len(rows)} rows in full, and ringkern {count['ringkern']}"
    if not less:
        return text + "; there is none that Gloo or NCCL is known to have and ringkern has not."
    return "\n".join([text + ". Rows that Gloo has and ringkern lacks:", "", *less])


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
