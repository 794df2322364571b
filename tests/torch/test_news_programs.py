"""The event thread in whole programs: its start, and that the last events are not lost."""

from __future__ import annotations

import subprocess

import pytest

from tests import forked

BEGIN = """
import atexit, logging, os, sys, threading, time
def at_exit():
    late = ringkern.Communicator.from_store(dist.HashStore(), 0, 1)
    late.all_reduce(torch.ones(3))
    late.close()
    print("made, with", sum(t.name == "ringkern-news" for t in threading.enumerate()), flush=True)
"""
THEN = """
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import torch, torch.distributed as dist, ringkern
def slowly(record):  # so that the program is at its end before
    time.sleep(0.5)
    return True
def alone():
    return ringkern.Communicator.from_store(dist.HashStore(), 0, 1)
def news():
    return sum(t.name == "ringkern-news" for t in threading.enumerate())
"""


def program(text: str, first: str = "") -> subprocess.CompletedProcess[str]:
    return forked.run(BEGIN + first + THEN + text)


def test_the_thread_starts_with_the_first_communicator() -> None:
    done = program("""
print(news())
communicator = alone()
print(news())
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n1\n", "")


def test_a_backend_needs_it() -> None:
    done = program("""
dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
print(news())
dist.all_reduce(torch.ones(3))
print(ringkern.dump()["pg_config"])
dist.destroy_process_group()
""")
    ring = {"name": "backend/0/cpu", "desc": "default_pg", "ranks": "[0]"}
    assert (done.returncode, done.stdout) == (0, f"1\n{ {ring['name']: ring} }\n"), done.stderr


def test_the_last_event_is_logged_before_the_end() -> None:
    done = program("""
logging.getLogger("ringkern").addFilter(slowly)
communicator = alone()
communicator.abort("no more of it")
""")
    assert (done.returncode, done.stdout) == (0, "")
    assert (
        done.stderr == "ringkern INFO communicator 'ringkern': aborted by rank 0: no more of it\n"
    )


def test_the_last_event_of_a_forked_process_is_logged() -> None:
    """A process of multiprocessing, whose end differs from a program's."""
    done = program("""
import multiprocessing
def rank():
    logging.getLogger("ringkern").addFilter(slowly)
    communicator = alone()
    communicator.abort("no more of it")
process = multiprocessing.get_context("fork").Process(target=rank)
process.start()
process.join()
print(process.exitcode)
""")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "no more of it" in done.stderr


def test_the_last_event_of_a_spawned_process_is_logged() -> None:
    """A process of multiprocessing, which ends first like a forked one, and then like a program."""
    done = program("""
import multiprocessing.util
class Fails:
    _c = property(lambda self: communicator.abort("no more of it"))
fails = Fails()
ringkern.comm.open_rings.add(fails)
communicator = alone()
multiprocessing.util._exit_function()
print(news())
""")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "no more of it" in done.stderr


def test_the_thread_ends_where_closing_fails() -> None:
    done = program("""
class Broken:
    @property
    def _c(self):
        raise ValueError("cannot be closed")
broken = Broken()
logging.getLogger("ringkern").addFilter(slowly)
ringkern.comm.open_rings.add(broken)
communicator = alone()
communicator.abort("no more of it")
""")
    assert done.returncode == 0, done.stderr
    assert "cannot be closed" in done.stderr
    assert "no more of it" in done.stderr


@pytest.mark.parametrize("before", ["", "communicator = alone()"])
def test_a_communicator_is_made_after_it_has_ended(before: str) -> None:
    """Exit functions registered before ringkern's own run after it."""
    done = program(before, first="atexit.register(at_exit)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "made, with 0\n", "")


def test_a_program_ends_though_logging_hangs() -> None:
    done = program("""
from ringkern import news
news._PATIENCE_S = 0.5
logging.getLogger("ringkern").addFilter(lambda record: threading.Event().wait())
communicator = alone()
communicator.abort()
print("done")
""")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_thread_that_cannot_be_is_no_failure() -> None:
    done = program("""
from unittest import mock
with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
    communicator = alone()
communicator.all_reduce(torch.ones(3))
""")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "ringkern WARNING ringkern's warnings will not be logged: can't start new thread\n"
    )
