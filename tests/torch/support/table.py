"""Writes the text of docs/reference/torch_distributed.md."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from tests.torch.support.names import FUNCTIONAL, WITHOUT_ROW
from tests.torch.support.nccl import FACTS, PAGE, TABLE
from tests.torch.support.registry import Outcome, Row
from tests.torch.support.rows import SIZE, Outcomes, Results

TEMPLATE = Path(__file__).with_name("template.md")
HEAD = """\
| function | case | Gloo | NCCL, documented | ringkern |
|---|---|---|---|---|"""
LOCAL = "Without communication"
SHOWN = 6  # names of a kind that are all listed


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


def has(row: Row, outcomes: Outcomes) -> bool:
    return all(outcome.verdict == "yes" for outcome in outcomes.values())


def denied(row: Row) -> bool:
    """Returns whether NCCL is known to lack a case."""
    fact = FACTS.get(row.key)
    return bool(fact and (fact.verdict == "no" or fact.but))


def texts(outcomes: Outcomes) -> list[str]:
    return [outcome.text for outcome in outcomes.values() if outcome.text]


def differs(row: Row, results: Results) -> bool:
    """Returns whether the backends' cells differ, one fails, or NCCL is known to lack a case."""
    gloo, ringkern = (results[backend][row.key] for backend in ("gloo", "ringkern"))
    full = has(row, gloo) and has(row, ringkern)
    named = [text.replace("gloo:", "ringkern:") for text in texts(gloo)]
    return not full or denied(row) or named != texts(ringkern)


# ---- The page ------------------------------------------------------------------------------------

Cells = tuple[str, ...]


def cells_of(row: Row, results: Results) -> Cells:
    """Returns the cells of a row of the first table, without its functions and its case."""
    gloo, ringkern = (cell(results[backend][row.key]) for backend in ("gloo", "ringkern"))
    if ringkern == gloo and gloo.startswith("no: "):
        ringkern = "no: the same"
    return (gloo, documented(row), f"{ringkern} ({row.remark})" if row.remark else ringkern)


def alike(rows: list[tuple[Row, Cells]], shown: dict[str, str]) -> Iterator[tuple[str, str, Cells]]:
    """Yields functions, cases and cells; functions, and then cases, with equal cells share one.

    ``shown`` has texts, by the keys of rows, to add to their cases.
    """
    functions: dict[tuple[str, Cells], list[Row]] = {}
    for row, cells in rows:
        functions.setdefault((row.feature, cells), []).append(row)
    features: dict[tuple[Cells, Cells], list[str]] = {}
    for (feature, cells), equal_rows in functions.items():
        added = ", ".join(shown[row.key] for row in equal_rows if shown.get(row.key))
        names = tuple(name for row in equal_rows for name in row.names)
        features.setdefault((names, cells), []).append(feature + (f" ({added})" if added else ""))
    for (names, cells), of in features.items():
        case = "; ".join(feature or "call" for feature in of) if any(of) else ""
        yield ", ".join(code(name.removeprefix(FUNCTIONAL)) for name in names), case, cells


def different(rows: list[Row], results: Results) -> str:
    chosen = [(row, cells_of(row, results)) for row in rows if differs(row, results)]
    lines = [f"| {' | '.join([names, case, *cells])} |" for names, case, cells in alike(chosen, {})]
    return "\n".join([HEAD, *lines])


def equal(rows: list[Row], results: Results) -> str:
    """Returns lists of the cases that both backends support, by section."""
    shown = {key: ", ".join(texts(outcomes)) for key, outcomes in results["ringkern"].items()}
    lists = []
    for section in dict.fromkeys(row.section for row in rows):
        chosen = [
            (row, ("" if section == LOCAL else documented(row),))
            for row in rows
            if row.section == section and not differs(row, results)
        ]
        items = [item(*each) for each in alike(chosen, shown)]
        if items:
            lists.append("\n".join([f"### {section}", "", *items]))
    return "\n\n".join(lists)


def item(names: str, case: str, cells: Cells) -> str:
    (nccl,) = cells
    return f"- {names}{f': {case}' if case else ''}{f'. NCCL: {nccl}' if nccl else ''}"


def summary(rows: list[Row], results: Results) -> str:
    count = {b: sum(has(row, results[b][row.key]) for row in rows) for b in results}
    less = [
        ", ".join(map(code, row.names)) + (f" ({row.feature})" if row.feature else "")
        for row in rows
        if has(row, results["gloo"][row.key]) and not has(row, results["ringkern"][row.key])
    ]
    full, gloo = count["ringkern"], count["gloo"]
    text = f"ringkern supports {full} of {len(rows)} cases in full, Gloo {gloo}."
    if not less:
        return f"{text} ringkern supports each case that Gloo supports."
    return f"{text} Supported by Gloo and not by ringkern: {', '.join(less)}."


def left_out() -> str:
    """Returns the kinds of names without a row, with all names of a kind or the first."""
    return "\n".join(map(kind, WITHOUT_ROW))


def kind(what: str) -> str:
    names = WITHOUT_ROW[what].split()
    few = len(names) <= SHOWN
    shown = ", ".join(map(code, names if few else names[: SHOWN // 2]))
    return f"- {what}{':' if few else ', such as'} {shown}"


def page(rows: Iterable[Row], results: Results) -> str:
    rows = list(rows)
    template = string.Template(TEMPLATE.read_text())
    return template.substitute(
        torch=torch_version(),
        size=SIZE,
        summary=summary(rows, results),
        different=different(rows, results),
        equal=equal(rows, results),
        left_out=left_out(),
    )
