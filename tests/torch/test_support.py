"""docs/reference/torch_distributed.md: every public function has its row; it is what runs show."""

from __future__ import annotations

import re
import time

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


def test_what_is_said_of_nccl_is_in_the_docstrings() -> None:
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
