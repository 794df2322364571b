"""Passes events of the C++ library to Python's logging, and writes dumps when they are due.

One thread per process waits for events. It begins with the first communicator and ends with the
program.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import signal
import sys
import threading

from . import _C, recorder
from .config import config

_logger = logging.getLogger("ringkern")
# The end of a program waits this long for a handler of logging, or a disk, and no longer.
_PATIENCE_S = 5.0

_lock = threading.Lock()
_thread: threading.Thread | None = None
_over = False


def start() -> None:
    """Starts the thread unless it runs; to be called for every new communicator."""
    global _thread
    with _lock:
        if _thread is not None or _over:
            return
        _C.open_news()
        if config.dump_dir is not None and not _C.dump_on(signal.SIGUSR2):
            _logger.info(
                "SIGUSR2 is handled or ignored by this program: only a failure, or "
                "ringkern.dump(), writes to RINGKERN_DUMP_DIR"
            )
        thread = threading.Thread(target=_read, name="ringkern-news", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads, or the interpreter ends
            _logger.warning("ringkern's warnings will not be logged: %s", error)
        else:
            _thread = thread
            # A process that multiprocessing has forked ends without atexit.
            multiprocessing.util.Finalize(None, _finish, exitpriority=0)


def stop() -> None:
    """Logs and writes the rest, and ends. Called at exit: a thread that is in C++ when Python ends
    would take the process with it."""
    global _over
    with _lock:
        _over = True
    _finish()


def _finish() -> None:
    global _thread
    with _lock:
        thread, _thread = _thread, None
    _C.close_news()
    if thread is not None:
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            return
    _read()  # events since then: the thread of a spawned process ends before its rings


def _read() -> None:
    while (news := _C.next_news()) is not None:
        try:
            _tell(*news)
        except Exception:  # from a handler of the program, reported as if it had its own thread
            exception = (*sys.exc_info(), threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(exception))


def _tell(kind: str, text: str) -> None:
    if kind == "warning":
        _logger.warning(text)
        return
    if kind == "report":
        _logger.error(text)  # once among all ranks, in case no rank reads its exception
    elif kind == "failure":
        _logger.info(text)  # the next caller gets it as an exception
    if config.dump_dir is None:
        return
    try:
        recorder.dump()
    except OSError as error:
        _logger.warning("cannot write the last calls to RINGKERN_DUMP_DIR: %s", error)
    else:
        _logger.info("the last calls of this rank are in %s", config.dump_dir)


def _forget() -> None:
    """Resets a forked child, which lacks the thread, and whose lock may be held for ever."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
