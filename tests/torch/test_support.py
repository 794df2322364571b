"""docs/reference/torch_distributed.md: every public function has a row, and the rows match the
runs.
"""

from __future__ import annotations

import ast
import re
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.torch.support import __main__ as support
from tests.torch.support import names, nccl, rows, table
from tests.torch.support.registry import Row, WrongResultError

# ---- Rows ----------------------------------------------------------------------------------------


def as_documented() -> None:
    found = re.search(r"with torch (\d+\.\d+)", support.PAGE.read_text())
    assert found, f"{support.PAGE} does not say for which torch it is"
    if found[1] != table.torch_version():
        pytest.skip(f"the page is of torch {found[1]}, and this is {table.torch_version()}")


def test_every_public_name_has_a_row_or_a_reason() -> None:
    as_documented()
    assert names.problems(rows.ROWS) == []


def test_statements_on_nccl_are_in_the_docstrings() -> None:
    as_documented()
    assert nccl.problems(rows.ROWS) == []


def test_a_new_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = names.problems(rows.ROWS)
    monkeypatch.setattr(c10d, "__all__", [*c10d.__all__, "reduce_to_one"])
    monkeypatch.setattr(dist.DeviceMesh, "turned", dist.DeviceMesh.size, raising=False)
    monkeypatch.setattr(names.functional, "gather", names.functional.broadcast, raising=False)
    new = [problem for problem in names.problems(rows.ROWS) if problem not in known]
    assert [problem.split(" has ")[1].split(":")[0] for problem in new] == [
        "DeviceMesh.turned",
        "_functional_collectives.gather",
        "reduce_to_one",
    ]


def test_a_row_of_no_function_is_noticed() -> None:
    row = Row("Collectives", ("all_reduce", "no_such_function"), "", time.sleep, {"": ()}, "")
    problems = names.problems([*rows.ROWS, row])
    assert [p for p in problems if "no_such_function, which a row names" in p]


def test_a_quote_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    as_documented()
    known = nccl.problems(rows.ROWS)
    monkeypatch.setitem(nccl.FACTS, "gather", nccl.Fact("no", "gather", "not with NCCL"))
    monkeypatch.setitem(nccl.FACTS, "no row", nccl.Fact("yes", nccl.TABLE))
    assert [problem for problem in nccl.problems(rows.ROWS) if problem not in known] == [
        "a fact of NCCL names no row: no row",
        "gather: the docstring of gather has no 'not with NCCL'",
    ]


TESTS = Path(__file__).resolve().parents[1]
ON_CUDA = re.compile(r"^## On CUDA.*?(?=^## )", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(?:([\w/]+\.py)::)?(test_\w+)`")


def rows_on_cuda() -> list[list[str]]:
    """Returns the cells of the rows beside ProcessGroupNCCL, without headings."""
    (section,) = ON_CUDA.findall(table.TEMPLATE.read_text())
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    rows = [re.split(r" ?\| ?", line.removesuffix("|").removeprefix("| ")) for line in lines]
    return [row for row in rows if not row[0].startswith("**")]


def functions_of(file: Path) -> set[str]:
    if not file.exists():
        return set()
    body = ast.parse(file.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_point_next_to_nccl_names_tests_that_exist() -> None:
    found = rows_on_cuda()
    assert len(found) > 40
    for row in found:
        assert len(row) == 4, row
        named = NAMED.findall(row[3])
        assert named or row[3].startswith("not testable without a GPU: "), row
        for file, name in named:
            where = TESTS / (file or "torch/test_cuda_semantics.py")
            assert name in functions_of(where), f"{where} has no {name}: {row[0]}"


def test_every_test_of_cuda_semantics_is_of_a_point() -> None:
    cells = " ".join(row[3] for row in rows_on_cuda())
    tests = {
        f for f in functions_of(TESTS / "torch/test_cuda_semantics.py") if f.startswith("test")
    }
    assert tests == {name for file, name in NAMED.findall(cells) if not file}


# ---- Runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> rows.Results:
    as_documented()
    return rows.run(rows.in_order())


def test_the_page_is_what_runs_show(results: rows.Results) -> None:
    difference = support.difference(table.page(rows.in_order(), results))
    assert not difference, f"{support.UPDATE} writes the page anew\n{difference}"


def test_ringkern_leaves_no_wrong_result_and_does_not_hang(results: rows.Results) -> None:
    assert support.failures(results) == []


def works(rank: int, size: int) -> str:
    dist.barrier()
    return "as it should"


def refused_on_one_rank(rank: int, size: int) -> None:
    if rank == 1:
        raise ValueError("[/path/of/file.cc:123] Not with this backend. Exception raised from here")


def wrong_on_one_rank(rank: int, size: int) -> None:
    if rank:
        raise RuntimeError("because of the other rank")
    raise WrongResultError("one element of three")


def waits_for_ever(rank: int, size: int) -> None:
    if rank == 0:
        raise ValueError("rank 0 does not come")
    time.sleep(60)


def test_a_probe_that_fails_says_how_and_does_not_harm_the_next() -> None:
    with rows.Runner("gloo", size=2) as runner:
        assert runner.run(refused_on_one_rank) == ("no", "Not with this backend")
        assert runner.run(wrong_on_one_rank) == ("wrong result", "one element of three")
        assert runner.run(works) == ("yes", "as it should")
        runner.limit_s = 1
        hung = runner.run(waits_for_ever)
        assert hung == ("hangs", "another rank raised ValueError: rank 0 does not come")
        runner.limit_s = rows.LIMIT_S
        assert runner.run(works) == ("yes", "as it should")
