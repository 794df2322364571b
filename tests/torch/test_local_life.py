"""Rings whose ranks are all in this process: abort, close, forks, and the end of the program."""

from __future__ import annotations

import os
import textwrap
import threading
import time

import pytest
import torch

from ringkern import local
from ringkern.errors import CommAbortedError, CommUsageError
from tests import forked
from tests.comm.test_fork import in_forked_child
from tests.torch.test_api import values
from tests.torch.test_local import equal, ring_of, total

pytestmark = pytest.mark.quick


def test_abort_ends_a_call_in_progress() -> None:
    with ring_of(4) as ring:
        tensors = [torch.zeros(1 << 20) for _ in range(4)]
        ring.all_reduce(tensors)
        timer = threading.Timer(0.1, ring.abort, ["out of patience"])
        timer.start()

        def call_for_ever() -> None:
            while True:
                ring.all_reduce(tensors)

        with pytest.raises(CommAbortedError, match="aborted by rank 0: out of patience"):
            call_for_ever()
        timer.join()
        ring.abort("again")
        with pytest.raises(CommAbortedError, match=r"became unusable .*: out of patience"):
            ring.all_reduce(tensors)


def test_an_aborted_ring_is_replaced() -> None:
    tensors = [values(rank) for rank in range(5)]
    local.ring_all_reduce(tensors)
    (ring,) = (ring for key, ring in local._rings.items() if len(key[1]) == 5)
    ring.abort()
    with pytest.raises(CommAbortedError):
        local.ring_all_reduce(tensors)
    again = [values(rank) for rank in range(5)]
    local.ring_all_reduce(again)
    assert equal(again, total(5))


def threads_of_process() -> int:
    return len(os.listdir("/proc/self/task"))


def test_close() -> None:
    before = threads_of_process()
    ring = ring_of(6)
    assert ring.size == 6
    assert ring.devices == (torch.device("cpu"),) * 6
    tensors = [values(rank) for rank in range(6)]
    ring.all_reduce(tensors)
    ring.close()
    ring.close()
    with pytest.raises(CommUsageError, match="is closed"):
        ring.all_reduce(tensors)
    assert equal(tensors, total(6))
    # A thread that has been joined is listed for a moment longer.
    deadline = time.monotonic() + 10
    while threads_of_process() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads_of_process() <= before


def test_a_ring_that_nobody_holds_closes_itself() -> None:
    before = threads_of_process()
    for _ in range(50):
        ring_of(4).all_reduce([torch.ones(3) for _ in range(4)])
    assert threads_of_process() < before + 50


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_forked_child() -> None:
    tensors = [values(rank) for rank in range(3)]
    ring = ring_of(3)
    ring.all_reduce([x.clone() for x in tensors])
    local.ring_all_reduce([x.clone() for x in tensors])

    def one_of_its_own() -> None:
        for _ in range(3):
            mine = [values(rank) for rank in range(3)]
            local.ring_all_reduce(mine)
            assert equal(mine, total(3))

    status, raised = in_forked_child(
        [
            lambda: ring.all_reduce(tensors),
            one_of_its_own,
            ring.abort,  # has no effect, neither here nor in the parent
            ring.close,
        ]
    )
    assert status == 0
    kind, text = raised[0]
    assert kind == "CommUsageError"
    assert f"was made in process {os.getpid()}" in text
    assert "make a new ring in the child" in text
    assert raised[1:] == [("", "")] * 3
    ring.all_reduce(tensors)
    assert equal(tensors, total(3))
    ring.close()


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"], ids=["end", "exit"])
def test_a_program_may_end_in_the_middle_of_a_call(end: str) -> None:
    program = f"""
        import threading, time, torch
        from ringkern import errors, local

        def for_ever(reduce, tensors):
            try:
                while True:
                    reduce(tensors)
            except errors.RingKernError:
                pass

        ring = local.Ring(["cpu"] * 4)
        kept = []  # torch itself does not end well where a thread frees a tensor now
        for reduce in (ring.all_reduce, local.ring_all_reduce):
            tensors = [torch.zeros(100_000) for _ in range(4)]
            kept.append(tensors)
            reduce(tensors)
            threading.Thread(target=for_ever, args=(reduce, tensors), daemon=True).start()
        time.sleep(0.2)
        {end}
    """
    done = forked.run(textwrap.dedent(program), 120)
    assert (done.returncode, done.stderr) == (0, "")
