"""Unrequested reports of the library, by Python's logging, from a thread of its own."""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import ringkern
from tests.ranks import Pool

LIMIT_S = 60.0


class Listener(logging.Handler):
    """A context that collects the records of the logger "ringkern"."""

    def __init__(self) -> None:
        super().__init__()
        self.told: queue.Queue[logging.LogRecord] = queue.Queue()
        self.logger = logging.getLogger("ringkern")

    def emit(self, record: logging.LogRecord) -> None:
        self.told.put(record)

    def next(self) -> tuple[str, str, str]:
        """Returns level, text and thread of the next record."""
        record = self.told.get(timeout=LIMIT_S)
        return record.levelname, record.getMessage(), record.threadName or ""

    def __enter__(self) -> Listener:
        self.logger.addHandler(self)
        self.logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(logging.NOTSET)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener


def alone(name: str = "alone") -> ringkern.Communicator:
    return ringkern.Communicator.from_store(dist.HashStore(), 0, 1, name=name)


def news_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "ringkern-news"]


def test_one_thread_whatever_is_made() -> None:
    makers = [threading.Thread(target=alone) for _ in range(8)]
    for thread in makers:
        thread.start()
    for thread in makers:
        thread.join()
    (thread,) = news_threads()
    assert thread.daemon, "it must not keep a program from its end"


def test_a_failure_is_told_once(listener: Listener) -> None:
    communicator = alone()
    communicator.abort("enough")
    communicator.abort("again")
    level, text, thread = listener.next()
    assert (level, thread) == ("INFO", "ringkern-news")
    assert text.startswith("communicator 'alone': aborted by rank 0: enough")
    alone().abort("of another")
    assert "of another" in listener.next()[1]


class Looks(Listener):
    def emit(self, record: logging.LogRecord) -> None:
        self.failures = ringkern.dump()["failures"]
        super().emit(record)


def test_a_logged_failure_is_already_recorded() -> None:
    with Looks() as looks:
        for i in range(200):
            communicator = alone(f"look {i}")
            communicator.all_reduce(torch.ones(3))
            communicator.abort("enough")
            looks.next()
            assert f"look {i}/cpu" in looks.failures


class Unable(Listener):
    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError(f"cannot log: {record.getMessage()}")


def test_a_handler_that_raises_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: queue.Queue[threading.ExceptHookArgs] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", raised.put)
    with Unable():
        alone().abort("one")
        hooked = raised.get(timeout=LIMIT_S)
    assert "cannot log: communicator 'alone': aborted by rank 0: one" in str(hooked.exc_value)
    assert hooked.thread is news_threads()[0]
    with Listener() as listener:
        alone().abort("two")
        assert "two" in listener.next()[1]


def _late(rank: int, size: int) -> list[tuple[str, str]]:
    """Rank 1 comes after more than 5 s, when rank 0 has a report that it is late; twice."""
    x = torch.ones(10)
    ringkern.ring_all_reduce(x)
    with Listener() as listener:
        for _ in range(2):
            if rank == 1:
                time.sleep(6)
            ringkern.ring_all_reduce(x)
        assert torch.equal(x, torch.full((10,), 8.0))
        dist.barrier()
        return [listener.next()[:2] for _ in range(listener.told.qsize())]


def test_a_late_rank_is_a_warning(ranks: Pool) -> None:
    told, nothing = ranks(2).run(_late)
    assert nothing == []
    assert len(told) == 2, "once in each call"
    calls = set()
    for level, text in told:
        assert level == "WARNING"
        late = (
            r"rank 0 has waited 5\.0 s in (seq=\d+) all_reduce sum float32\[10\] for rank 1 \(pid"
        )
        call = re.search(late, text)
        assert call, text
        calls.add(call[1])
        assert re.search(r"The call fails after [1-9]\d*\.0 s without progress", text), text
    assert len(calls) == 2


def _forks(rank: int, size: int) -> None:
    communicator = alone()
    communicator.abort("of the parent")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert news_threads() == []
            with Listener() as listener:
                alone().abort("of the child")
                assert "of the child" in listener.next()[1], "and nothing of the parent's"
            assert len(news_threads()) == 1
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(news_threads()) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_its_own(ranks: Pool) -> None:
    ranks(1).run(_forks)
