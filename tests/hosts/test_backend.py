"""The backend on several hosts: random sequences of all collectives against Gloo, and what the
tests of one host (tests/torch) ask of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosts.groups import LAYOUTS, Groups, Members
from tests.ranks import Ranks
from tests.torch import (
    test_backend_async,
    test_backend_callbacks,
    test_backend_coalescing,
    test_backend_collectives,
    test_backend_exchanges,
    test_backend_groups,
    test_backend_layouts,
    test_backend_messages,
    test_backend_properties,
    test_backend_sparse,
)
from tests.torch.rings import ring
from tests.torch.test_backend_properties import Call, calls

EXAMPLES = int(os.environ.get("RK_TEST_HOSTS_EXAMPLES", "8"))  # for each layout


def _sequence(rank: int, size: int, groups: Groups, sequence: list[Call]) -> list[str]:
    return test_backend_properties.run_sequence(rank, size, sequence, groups)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_sequences_of_calls(
    members: Callable[[str], Members], layout: str, data: st.DataObject
) -> None:
    group = members(layout)
    sequence = data.draw(st.lists(calls(group.size), min_size=1, max_size=8))
    for differences in group.run(_sequence, sequence):
        assert not differences


# ---- what is asked of it on one host ------------------------------------------------------------

# With two ranks there is one order of addition, so that these may compare the bits of sums.
TWO = [
    (test_backend_collectives._all_reductions,),
    (test_backend_collectives._two,),
    (test_backend_collectives._premul_by_a_tensor,),
    (test_backend_collectives._reduce, 0),
    (test_backend_collectives._reduce, 1),
    (test_backend_collectives._reduce_scatters,),
    (test_backend_collectives._uneven_reduce_scatter,),
    (test_backend_collectives._shapes_differ,),
    (test_backend_messages._tags,),
    (test_backend_messages._one_after_the_other,),
    (test_backend_messages._same_tag,),
    (test_backend_messages._strided,),
    (test_backend_messages._work,),
    (test_backend_messages._kept_alive,),
    (test_backend_callbacks._callbacks,),
    (test_backend_callbacks._calls_in_callbacks,),
    (test_backend_layouts._shared_elements,),
    (test_backend_sparse._sparse,),
]
MORE = [
    (test_backend_collectives._booleans,),
    (test_backend_collectives._broadcasts,),
    (test_backend_collectives._all_gathers,),
    (test_backend_collectives._uneven_all_gather,),
    (test_backend_collectives._shapes,),
    (test_backend_exchanges._gathers, 1),
    (test_backend_exchanges._scatters, 1),
    (test_backend_exchanges._all_to_alls,),
    (test_backend_exchanges._uneven,),
    (test_backend_exchanges._to_one_only,),
    (test_backend_exchanges._large,),
    (test_backend_exchanges._objects,),
    (test_backend_exchanges._objects_to_all,),
    (test_backend_exchanges._barrier,),
    (test_backend_messages._pairs,),
    (test_backend_messages._any_source,),
    (test_backend_messages._nothing_from_any_source,),
    (test_backend_layouts._one_element,),
    (test_backend_messages._many,),
    (test_backend_async._each,),
    (test_backend_async._together,),
    (test_backend_async._in_order,),
    (test_backend_async._mixed,),
    (test_backend_coalescing._lists,),
    (test_backend_coalescing._functional,),
    (test_backend_groups._at_once,),
]


def _name(case: Any) -> str:
    fn, *args = case
    return "".join([f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}", *map(str, args)])


@pytest.mark.parametrize("case", [*TWO, *MORE], ids=_name)
def test_two_hosts_of_one_rank(named: Callable[[str], Ranks], case: Any) -> None:
    named("ab").run(*case)


@pytest.mark.parametrize("case", MORE, ids=_name)
def test_uneven_hosts(named: Callable[[str], Ranks], case: Any) -> None:
    named("abb").run(*case)


def _taken_tags(rank: int, size: int) -> None:
    group, first, last = ring(), 2**30, 2**30 + 2**20 - 1
    for tag in (first, last):
        with pytest.raises(ValueError, match=f"tag is {tag}; between hosts tags from .* are taken"):
            dist.send(torch.ones(1), 1 - rank, group, tag=tag)
    for tag in (first - 1, last + 1):
        x = torch.tensor([float(tag)])
        if rank == 0:
            dist.send(x, 1, group, tag=tag)
        else:
            dist.recv(y := torch.zeros(1), 0, group, tag=tag)
            assert torch.equal(x, y)


def test_tags_that_collectives_take(named: Callable[[str], Ranks]) -> None:
    named("ab").run(_taken_tags)
