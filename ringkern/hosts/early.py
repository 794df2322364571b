"""Asynchronous calls that are made before it is known which ranks are on which host.

Who makes them goes on at once, as with any asynchronous call. A thread waits for the other ranks,
and then makes the calls in their order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_FOR_EVER = timedelta(0)


class EarlyWork(dist.Work):
    """A Work that such a call returns, and that stands for another one, which comes later.

    Args:
        interrupted: called with what a signal's handler has raised in a wait.
    """

    def __init__(self, interrupted: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._interrupted = interrupted
        self._begun = threading.Event()
        self._work: dist.Work | None = None
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def begin(self, work: dist.Work) -> None:
        """The call has been made, and ``work`` is what it returned."""
        self._work = work
        self._begun.set()
        work.get_future().add_done_callback(self._pass_on)

    def fail(self, error: Exception) -> None:
        """The call could not be made, because of ``error``."""
        self._error = error
        self._begun.set()
        self._future.set_exception(error)

    def _pass_on(self, future: torch.futures.Future[Any]) -> None:
        try:
            result = future.value()
        except Exception as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def _wait_for_begin(self, timeout: timedelta) -> timedelta:
        """What is left of ``timeout`` when it has begun; 0: for ever."""
        for_ever = timeout <= _FOR_EVER
        start = time.monotonic()
        try:
            begun = self._begun.wait(
                None if for_ever else min(timeout.total_seconds(), threading.TIMEOUT_MAX)
            )
        except BaseException as error:
            self._interrupted(error)
            raise
        if for_ever:
            return _FOR_EVER
        if not begun:
            raise RuntimeError(f"the wait timed out after {timeout}: not all ranks are there yet")
        gone = timedelta(seconds=time.monotonic() - start)
        return max(timeout - gone, timedelta(milliseconds=1))

    def wait(self, timeout: timedelta = _FOR_EVER) -> bool:
        """Until the call is done.

        Args:
            timeout: after which it raises RuntimeError; 0: never.
        """
        left = self._wait_for_begin(timeout)
        if self._error is not None:
            raise self._error
        assert self._work is not None
        return self._work.wait(left) if left else self._work.wait()

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call is done, or has failed."""
        return self._error is not None or (self._work is not None and self._work.is_completed())

    def is_success(self) -> bool:
        """Whether the call is done, and has not failed."""
        return self._work is not None and self._work.is_success()

    def get_future(self) -> torch.futures.Future[Any]:
        """Of the call's tensors."""
        return self._future


class EarlyCalls:
    """The asynchronous calls of a communicator until its hosts are known.

    Args:
        settle: waits for the hosts; what it raises is the error of the first call.
        made: gives what makes the calls then.
        over: called when there are no more.
        interrupted: as for :class:`EarlyWork`.
    """

    def __init__(
        self,
        settle: Callable[[], None],
        made: Callable[[], Any],
        over: Callable[[], None],
        interrupted: Callable[[BaseException], None],
    ) -> None:
        self._settle, self._made, self._over = settle, made, over
        self._interrupted = interrupted
        self._lock = threading.Lock()
        self._calls: deque[tuple[EarlyWork, str, tuple[Any, ...]]] | None = deque()
        self._thread = threading.Thread(target=self._run, name="ringkern-early", daemon=True)

    def add(self, collective: str, args: tuple[Any, ...]) -> EarlyWork | None:
        """Queues a call of method ``collective``; ``None``: there is no queue any more."""
        with self._lock:
            if self._calls is None:
                return None
            work = EarlyWork(self._interrupted)
            self._calls.append((work, collective, args))
            return work

    def start(self) -> None:
        """Begins to wait."""
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until all calls were made; False: ``timeout_s`` were over before."""
        if self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._settle()
        except Exception as raised:
            error = raised
        while (call := self._next()) is not None:
            work, collective, args = call
            try:
                if error is not None:
                    raise error
                work.begin(getattr(self._made(), collective)(*args))
            except Exception as raised:
                work.fail(raised)
            error = None
        self._over()

    def _next(self) -> tuple[EarlyWork, str, tuple[Any, ...]] | None:
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._calls = None
            return None
