"""Limits the lines of a function in csrc.

    python tests/build/sizes.py     prints longer ones as path:line: what, and exits with 1

Comments and empty lines count; a function begins with its name and ends with its last brace. lizard
finds the functions, and reads CUDA as it reads C++. A file has no limit: it is one idea.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import lizard

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
FUNCTION_LINES = 80

# Exceptions: path and name of the function as path:name, with the reason.
EXCUSED: dict[str, str] = {}


def violations(csrc: Path, excused: dict[str, str] = EXCUSED) -> Iterator[str]:
    """Yields each violation as "path:line: what", with the path below `csrc`."""
    used = set()
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in SUFFIXES):
        file, text = path.relative_to(csrc).as_posix(), path.read_text()
        # The name is what lizard takes the language from, and it does not know .cuh.
        for function in lizard.analyze_file.analyze_source_code("source.cpp", text).function_list:
            length = function.end_line - function.start_line + 1
            if length <= FUNCTION_LINES:
                continue
            name = function.name.split("::")[-1]
            used.add(f"{file}:{name}")
            if f"{file}:{name}" not in excused:
                yield (
                    f"{file}:{function.start_line}: {name} has {length} lines; "
                    f"a function has at most {FUNCTION_LINES}"
                )
    for entry in sorted(set(excused) - used):
        yield f"{entry.partition(':')[0]}:1: needs no excuse any more: tests/build/sizes.py"


if __name__ == "__main__":
    found = list(violations(ROOT / "csrc"))
    print("\n".join(f"csrc/{violation}" for violation in found), end="\n" if found else "")
    sys.exit(1 if found else 0)
