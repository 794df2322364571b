"""Where each command of a page is run: commands in no list here are run unchanged by
``test_blocks.py``.
"""

from __future__ import annotations

import re

# They install or build: `make readme` runs them, in a fresh clone with a fresh environment.
IN_A_CLONE = (
    r"pip install -e \.",
    r"make (demo|build)",
)

# They take long, and are run as they stand by others.
ELSEWHERE = {
    r"python examples/\w+\.py": "tests/torch/test_*examples.py",
    r"make (test|conformance)": "CI, in a fresh clone: .ci/run",
    r"make (ctest|pytest)( PYTEST_ARGS=\"[^\"]*\")?": "CI, as parts of make test",
    r"make (simt|mutants|lint|docs|readme)": "CI, by a job of its own",
    r"make ptx(-mutants)?": "CI, a part of it in make test",
}


def bare(command: str) -> str:
    """Returns the command without the comment behind it."""
    return re.sub(r"\s+#\s.*$", "", command).strip()


def needs_a_clone(command: str) -> bool:
    return any(re.fullmatch(pattern, bare(command)) for pattern in IN_A_CLONE)


def run_elsewhere(command: str) -> str | None:
    """Returns the test or tool that runs it, or None."""
    return next((by for what, by in ELSEWHERE.items() if re.fullmatch(what, bare(command))), None)
