"""Parses sizes and dtypes of a command line, and formats sizes and times."""

from __future__ import annotations

import argparse
import re

# nccl-tests' names of dtypes that have other names in torch.
DTYPE_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}


def parse_size(text: str) -> int:
    """Reads bytes as a number with an optional unit: ``"8"``, ``"64K"``, ``"1M"``, ``"2GiB"``.

    The units are powers of 1024, as in nccl-tests.

    Raises:
        argparse.ArgumentTypeError: anything else; the text says what is accepted.
    """
    # A lower-case b is refused, because it would mean bits: 4Mb is half a megabyte elsewhere.
    match = re.fullmatch(r"(\d+)([KMGkmg]?)(?:[iI]?B)?", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: give bytes, with or without K, M or G, as 64K or 64KiB"
        )
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def say_size(nbytes: int) -> str:
    """Returns a size as ``parse_size`` reads it if it is round, otherwise rounded: ``"1.2M"``."""
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        number = nbytes / (1 << shift)
        if number >= 1:
            return (f"{number:.3g}" if number < 999.5 else f"{int(number)}") + unit
    return str(nbytes)


def size_text(nbytes: int) -> str:
    """Returns the shortest text that :func:`parse_size` reads as this many bytes: ``"64K"``."""
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)


def say_time(time_us: float | None) -> str:
    """Returns microseconds, milliseconds or seconds; ``"-"`` if unknown."""
    if time_us is None:
        return "-"
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if time_us >= scale:
            return f"{time_us / scale:.3g} {unit}"
    return f"{time_us:.3g} us"
