"""python -m tests.torch.support [--update] [--rows PATTERN]: see the package."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

from tests.torch.support import names, nccl, rows, table

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/torch_distributed.md"
UPDATE = "python -m tests.torch.support --update"


def problems() -> list[str]:
    """Returns the faults of the rows themselves, without a run."""
    return names.problems(rows.ROWS) + nccl.problems(rows.ROWS)


def difference(text: str) -> str:
    """Returns the difference between the committed page and ``text``."""
    committed = PAGE.read_text() if PAGE.exists() else ""
    lines = (committed.splitlines(), text.splitlines())
    return "\n".join(difflib.unified_diff(*lines, "committed", "run", n=0, lineterm=""))


def failures(results: rows.Results) -> list[str]:
    """Returns ringkern's results that no backend may have."""
    return [
        f"{key} {case}: {outcome.verdict}: {outcome.text}"
        for key, outcomes in results["ringkern"].items()
        for case, outcome in outcomes.items()
        if outcome.verdict in ("wrong result", "hangs") or outcome.text == rows.DIED
    ]


def show(pattern: str) -> None:
    """Runs the rows that match, and prints their results in full."""
    chosen = [row for row in rows.in_order() if re.search(pattern, row.key)]
    results = rows.run(chosen)
    for row in chosen:
        for case in row.cases:
            print(row.key, case)
            for backend in rows.BACKENDS:
                print(f"    {backend}: {': '.join(results[backend][row.key][case])}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torch.support")
    parser.add_argument("--update", action="store_true", help="write the page")
    parser.add_argument(
        "--rows", metavar="PATTERN", help="run these only, and print what they show"
    )
    arguments = parser.parse_args()
    if arguments.rows is not None:
        return show(arguments.rows)
    if found := problems():
        sys.exit("\n".join(found))
    chosen = rows.in_order()
    results = rows.run(chosen)
    text = table.page(chosen, results)
    print(difference(text) or f"{PAGE.name} is what runs show")
    for failure in failures(results):
        print("ringkern:", failure)
    if arguments.update:
        PAGE.write_text(text)
    return None


if __name__ == "__main__":
    main()
