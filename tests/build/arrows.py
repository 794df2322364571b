"""Holds the Python package to an order: neither modules nor packages import in a circle.

    python tests/build/arrows.py           prints each circle, and exits with 1
    python tests/build/arrows.py --list    prints which part of ringkern imports which

Imports inside a function count: they too say who knows whom. Those for type checkers alone do not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Circles that are meant: each is closed by an import inside a function, when that is called.
EXCUSED = {
    frozenset({"ringkern.topology.graph", "ringkern.topology.routes"}): (
        "Machine.fabric() and .cpu_fabric() stand for functions of routes"
    ),
    frozenset({"comm", "explain", "tuner"}): (
        "Communicator.explain() asks explain, which reads tuner's tables; tune makes communicators"
    ),
}


def _modules(package: Path) -> dict[str, Path]:
    """Modules by dotted name; a package goes by the name of its directory."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def _imports(node: ast.AST, of: str) -> Iterator[str]:
    """What is imported below `node`, with dots at the front resolved against package `of`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = of.split(".")[: len(of.split(".")) - child.level + 1] if child.level else []
            base = ".".join([*above, *([child.module] if child.module else [])])
            yield from (f"{base}.{alias.name}" for alias in child.names)
        else:
            yield from _imports(child, of)


def imports(package: Path) -> dict[str, set[str]]:
    """For each module of `package` the others that it imports."""
    modules = _modules(package)
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        of = name if path.name == "__init__.py" else name.rpartition(".")[0]
        graph[name] = set()
        for wanted in _imports(ast.parse(path.read_text()), of):
            # A name that is no module is taken from the module before it.
            target = wanted if wanted in modules else wanted.rpartition(".")[0]
            # A module inside a package needs that package's __init__, unless it is in it itself.
            while target in modules and target != package.name:
                if target != name and not name.startswith(target + "."):
                    graph[name].add(target)
                target = target.rpartition(".")[0]
    return graph


def parts(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same between packages and single modules, one level below the top."""
    above: dict[str, set[str]] = {}
    for name, targets in graph.items():
        if "." not in name:  # the package itself, which shows what the others are
            continue
        part = name.split(".")[1]
        above.setdefault(part, set()).update(target.split(".")[1] for target in targets)
    return {part: others - {part} for part, others in above.items()}


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Sets of nodes of which each reaches each."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    all_reached = {node: reached(node) for node in graph}
    return sorted(
        {
            frozenset(other for other in after if node in all_reached[other])
            for node, after in all_reached.items()
            if node in after
        },
        key=sorted,
    )


def violations(package: Path, excused: Mapping[frozenset[str], str] = EXCUSED) -> Iterator[str]:
    graph = imports(package)
    found = {
        "modules": circles(graph),
        f"parts of {package.name}": circles(parts(graph)),
    }
    for what, rounds in found.items():
        for circle in rounds:
            if circle not in excused:
                yield f"{what} import each other in a circle: {', '.join(sorted(circle))}"
    for circle in set(excused) - {circle for rounds in found.values() for circle in rounds}:
        yield f"needs no excuse any more, in tests/build/arrows.py: {', '.join(sorted(circle))}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for part, others in parts(imports(ROOT / "ringkern")).items():
            print(f"{part}: {', '.join(sorted(others))}")
        sys.exit()
    found = list(violations(ROOT / "ringkern"))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
