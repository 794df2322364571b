"""The files of tunings: in ``$XDG_CACHE_HOME/ringkern``, or else ``~/.cache/ringkern``, one for
each machine that shares the directory; and ringkern's own, for machines where nobody has measured.

A file is replaced whole, so that a concurrent reader has the old one or the new one. This module
does not need torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .identity import Identity
from .tuning import Tuning, TuningError, dump, machine_in, parse

SHIPPED = Path(__file__).parent / "tunings"  # a file for each processor, and one for CUDA
DEFAULT = SHIPPED / "amd-family-26.json"  # for processors of other makers
PREDICTED = SHIPPED / "cuda-predicted.json"  # written by `python -m ringkern model --write`
AGAIN = "run `python -m ringkern tune` again, or delete the file"

_MOST_BYTES = 4 << 20  # of a file; ringkern's own have less than a hundredth


def folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/ringkern``, or the same in ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of these variables says that a relative path is ignored.
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "ringkern"


def file_of(machine: Identity) -> Path:
    """Returns the file for the tuning of a machine."""
    return folder() / f"tuning-{machine.id}.json"


def read(path: Path, machine: Identity | None = None) -> Tuning:
    """Reads a file.

    Args:
        machine: the machine on which it must have been measured; ``None``: any.

    Raises:
        FileNotFoundError: there is no such file.
        TuningError: it cannot be read, or is broken, of another version, or of another machine.
    """
    tuning = parse(_text_of(path))
    if machine is not None and tuning.machine != machine:
        raise TuningError(f"it was measured on another machine: {tuning.machine}")
    return tuning


def machine_of(path: Path) -> Identity:
    """Returns the machine of a file, and does not read the rest.

    Raises:
        FileNotFoundError, TuningError: see :func:`read`.
    """
    return machine_in(_text_of(path))


def _text_of(path: Path) -> str:
    try:
        # Does not block if the path is a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
                raise TuningError("it is no file, or too large a one")
            return file.read(_MOST_BYTES).decode()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(str(error)) from error


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Keeps other processes out of the directory while the block runs. Makes it if needed.

    Raises:
        OSError: it cannot be made or written; the text says what to do.
    """
    _check_owner(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(f"{error}; {_elsewhere(directory)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write(path: Path, tuning: Tuning, mode: int = 0o600) -> None:
    """Replaces a file as a whole.

    Raises:
        OSError: it cannot be written; the text says what to do.
    """
    _check_owner(path.parent)
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(descriptor, "w") as file:
            file.write(dump(tuning))
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise OSError(f"{error}; {_elsewhere(path.parent)}") from error


def check_writable(directory: Path) -> None:
    """Makes a directory, and checks that a file can be put there.

    Raises:
        OSError: it cannot; the text says what to do.
    """
    with alone_in(directory):
        try:
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise OSError(f"{error}; {_elsewhere(directory)}") from error


def _check_owner(directory: Path) -> None:
    """Raises if root would write into a user's directory, as under sudo."""
    if os.geteuid() != 0:
        return
    there = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if (owner := there.stat().st_uid) != 0:
        raise PermissionError(
            f"{there} belongs to the user {owner}, and this is root: do it as that user, or "
            f"{_elsewhere(directory)}"
        )


def _elsewhere(directory: Path) -> str:
    return (
        f"nothing was written to {directory}: make it writable, set XDG_CACHE_HOME to another "
        "directory, or give --out FILE"
    )
