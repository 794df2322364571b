"""Checks csrc against its map: the includes, and constructs that a folder must not use.

    python tests/build/rooms.py     prints each violation as path:line: what, and exits with 1

The allowed includes are read from the table of csrc/README.md, so that the map is always true. This
file defines the system headers that a phrase of that table allows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}

# Phrases of the column "may use", beside rooms and headers of rooms: the headers that they mean.
PHRASES = {
    "fixed-width integers": r"cstddef|cstdint",
    "the headers of half, bfloat16 and fp8": r"cuda_(bf16|fp16|fp8)\.h",
    "the headers of CUDA": r"cuda(_runtime(_api)?)?\.h",
    "POSIX": (
        r"(sys|linux)/\w+\.h|"
        r"(fcntl|limits|poll|pthread|sched|semaphore|signal|time|unistd)\.h"
    ),
    "vector instructions": r"immintrin\.h",
    "torch": r"(torch|ATen|c10)/.*",
    "pybind11": r"pybind11/.*",
    "NVTX": r"nvtx3/.*",
}
# Rooms that take no header of C++ but these: the others allocate, or know threads or time.
FEW_STANDARD = {"core": set[str](), "reduce": {"cstring", "type_traits"}}
# A header that a room does not take, in one file of it.
EXCUSED = {
    ("core/trace.h", "vector"): "the schedule as a list, for Python and tests; no rank runs it",
}

ASM_OF_THE_HOST = {
    "cpu/wait.h": "the hint of a spin on Arm",
}
MAY_SPIN = frozenset({"cpu/wait.h", "cpu/wait.cpp", "cuda/wait.cuh", "cuda/ptx.cuh"})


@dataclass(frozen=True)
class Word:
    """A construct that only some files may use: `pattern`, on code without comments and texts."""

    what: str
    pattern: str
    rooms: str  # where it is forbidden, as a regular expression
    but: frozenset[str] = frozenset()  # files that may


WORDS = (
    Word("asm", r"\b(asm|__asm__)\b", r"\w+", frozenset({"cuda/ptx.cuh", *ASM_OF_THE_HOST})),
    Word("the environment", r"\b((secure_)?getenv|setenv|putenv|environ)\b", r"\w+"),
    Word("printing", r"\b(v?f?printf|f?puts|putchar|perror|syslog)\s*\(", r"\w+"),
    Word("printing", r"\bstd::(cout|cerr|clog|print(ln)?)\b", r"\w+"),
    Word(
        "ending the process",
        r"(\bstd|(?<!\w))::(_?_?exit|_Exit|quick_exit|abort)\s*\(",
        r"\w+",
        frozenset({"torch/python.cpp"}),  # RINGKERN_ON_FAULT=exit
    ),
    Word("allocation", r"\bnew\b|\b(malloc|calloc|realloc|free)\s*\(", r"core|reduce"),
    Word("a spin", r"\b(__builtin_ia32_pause|rest)\s*\(", r"core|reduce|cpu|cuda", MAY_SPIN),
)

NO_CODE = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)"""
    r"""|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)\""""
    r"""|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*(?P<open>[<"])(?P<path>[^">\n]+)[">]""", re.M)


def without_comments(text: str, *, keep_texts: bool = False) -> str:
    """C++ without its comments and, unless they are kept, its texts; all lines stay."""

    def blank(found: re.Match[str]) -> str:
        if keep_texts and not found["comment"]:
            return found[0]
        return " " + "\n" * found[0].count("\n")

    return NO_CODE.sub(blank, text)


# ---- the map ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Room:
    """A row of the map: other rooms, headers of other rooms, and headers of the system."""

    rooms: frozenset[str]
    headers: frozenset[str]
    system: re.Pattern[str]


def read_map(readme: str) -> dict[str, Room]:
    """Returns the table of csrc/README.md with the columns room and "may use".

    Raises:
        ValueError: there is none, or it has a phrase that PHRASES does not know.
    """
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|[^|]*\|$", readme, re.MULTILINE)
    if not rows:
        raise ValueError("csrc/README.md has no table of rooms: | room | .. | may use | must not |")
    names = {name for name, _ in rows}
    rooms = {}
    for name, cell in rows:
        quoted = set(re.findall(r"`([^`]+)`", cell))
        rest = re.sub(r"`[^`]+`", "", cell)
        if "all of the above" in rest:
            quoted |= names - {name}
            rest = rest.replace("all of the above", "")
        patterns = []
        for phrase, pattern in PHRASES.items():
            if phrase in rest:
                patterns.append(pattern)
                rest = rest.replace(phrase, "")
        if rest.strip(" ,"):
            raise ValueError(
                f"csrc/README.md says that {name} may use {rest.strip(' ,')!r}; "
                f"tests/build/rooms.py knows {', '.join(PHRASES)}"
            )
        rooms[name] = Room(
            rooms=frozenset(quoted & names) | {name},
            headers=frozenset(quoted - names),
            system=re.compile("|".join(patterns) or r"(?!)"),
        )
    return rooms


# ---- the checks ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Include:
    line: int
    path: str
    own: bool  # with quotes: a header of csrc


def room_of(file: str) -> str:
    """Returns the room whose rules a file follows; "torch" for p2p/torch_x.h, hosts/torch_x.h."""
    room, _, name = file.partition("/")
    return "torch" if name.startswith("torch_") else room


def includes(text: str) -> list[Include]:
    code = without_comments(text, keep_texts=True)
    return [
        Include(code.count("\n", 0, found.start()) + 1, found["path"], found["open"] == '"')
        for found in _INCLUDE.finditer(code)
    ]


def _refused(file: str, include: Include, rooms: dict[str, Room], files: set[str]) -> str | None:
    """Returns why `file` may not have this include, or None."""
    name = room_of(file)
    room, path = rooms[name], include.path
    if include.own:
        if path not in files:
            return "there is no such file; headers are included by room path"
        if room_of(path) in room.rooms or path in room.headers:
            return None
        return f"{name} may not use {room_of(path)}"
    if room.system.fullmatch(path) or (file, path) in EXCUSED:
        return None
    if re.fullmatch(r"\w+", path):
        few = FEW_STANDARD.get(name)
        return None if few is None or path in few else f"{name} has no use for <{path}>"
    return f"{name} may not use it"


def _cycle(headers: dict[str, list[str]]) -> list[str] | None:
    """Headers that include each other in a circle, the first also as the last."""
    done: set[str] = set()
    for start in headers:
        way: list[str] = []

        def visit(header: str, way: list[str] = way) -> list[str] | None:
            if header in way:
                return [*way[way.index(header) :], header]
            if header in done:
                return None
            way.append(header)
            for other in headers.get(header, ()):
                if circle := visit(other):
                    return circle
            done.add(way.pop())
            return None

        if circle := visit(start):
            return circle
    return None


def violations(csrc: Path) -> Iterator[str]:
    """Yields each violation as "path:line: what", with the path below `csrc`."""
    rooms = read_map((csrc / "README.md").read_text())
    paths = sorted(path for path in csrc.rglob("*") if path.suffix in SUFFIXES)
    texts = {path.relative_to(csrc).as_posix(): path.read_text() for path in paths}
    graph: dict[str, list[str]] = {}
    for file, text in texts.items():
        if file.split("/")[0] not in rooms:
            yield f"{file}:1: it is in no room of csrc/README.md"
            continue
        found = includes(text)
        graph[file] = [include.path for include in found if include.own]
        for include in found:
            if why := _refused(file, include, rooms, set(texts)):
                yield f"{file}:{include.line}: includes {include.path}: {why}"
        yield from _words(file, text)
    if circle := _cycle(graph):
        yield f"{circle[0]}:1: includes itself: {' -> '.join(circle)}"


def _words(file: str, text: str) -> Iterator[str]:
    code = without_comments(text)
    for word in WORDS:
        if file in word.but or not re.fullmatch(word.rooms, room_of(file)):
            continue
        for found in re.finditer(word.pattern, code):
            line = code.count("\n", 0, found.start()) + 1
            yield f"{file}:{line}: {word.what} has no place here: {found[0].strip()}"


if __name__ == "__main__":
    found = list(violations(ROOT / "csrc"))
    print("\n".join(f"csrc/{violation}" for violation in found), end="\n" if found else "")
    sys.exit(1 if found else 0)
