"""A communicator in a forked child cannot be used, and does the parent's no harm."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringkern
from tests.ranks import Pool
from tests.torch.test_api import summed, values


def in_forked_child(calls: list[Callable[[], Any]]) -> tuple[int, list[tuple[str, str]]]:
    """Returns the child's exit status, and the exception of each call there: (class, text)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            raised = []
            for call in calls:
                try:
                    call()
                    raised.append(("", ""))
                except BaseException as error:
                    raised.append((type(error).__name__, str(error)))
            os.write(writer, pickle.dumps(raised))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    return status, pickle.loads(answer) if answer else []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def _fork(rank: int, size: int) -> None:
    x = values(rank)
    ringkern.ring_all_reduce(x)
    communicator = ringkern.Communicator()
    communicator.all_reduce(values(rank))
    # The communicator's thread is running; the child does not have it.
    work = communicator.all_reduce(values(rank, 100_000), async_op=True)
    if rank == 0:
        whole, part = torch.ones(20), torch.ones(10)
        status, raised = in_forked_child(
            [
                lambda: ringkern.ring_all_reduce(torch.ones(3)),
                lambda: ringkern.ring_all_reduce(torch.ones(3), async_op=True),
                lambda: ringkern.ring_reduce_scatter(part, whole),
                lambda: ringkern.ring_all_gather(whole, part),
                lambda: communicator.all_reduce(torch.ones(3)),
                communicator.abort,  # has no effect, neither here nor in the parent
                communicator.close,
                communicator.close,
            ]
        )
        assert status == 0
        assert [kind for kind, _ in raised] == ["CommUsageError"] * 5 + [""] * 3
        for _, text in raised[:5]:
            assert f"was made in process {os.getpid()} and is used in process" in text
            assert "which was forked from it. Start ranks with spawn" in text
    assert work is not None
    work.wait()
    for _ in range(3):
        y = values(rank)
        communicator.all_reduce(y)
        assert torch.equal(y, summed(size))
        z = values(rank)
        ringkern.ring_all_reduce(z)
        assert torch.equal(z, summed(size))
    communicator.close()


def test_use_in_a_forked_child(ranks: Pool) -> None:
    ranks(2).run(_fork)
