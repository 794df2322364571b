"""The backend on several hosts: random sequences of all collectives against Gloo, and tags. The
rest is tested where one host is: the tests of tests/torch that run over a `grid`."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hosts.groups import LAYOUTS, Groups, Members
from tests.ranks import Pool
from tests.torch import test_backend_properties
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


def test_tags_that_collectives_take(ranks: Pool) -> None:
    ranks("ab").run(_taken_tags)
