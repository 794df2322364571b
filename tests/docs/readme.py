"""``make readme``: runs README.md and docs/quickstart.md like a new user.

Makes a fresh clone of the commit and an empty virtual environment, and then runs every command and
every block unchanged and in order, including installs and builds. It takes minutes and downloads
packages. Variables of pip and of the build apply: ``RINGKERN_CUDA=0``, which leaves out the CUDA
kernels and is quicker, or ``PIP_CONSTRAINT``.

    python3 -m tests.docs.readme [--repository DIR]      # needs git and README.md's requirements
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.blocks import PAGES, ROOT, Block, blocks_of, missing_lines, said_to_print
from tests.docs.commands import run_elsewhere
from tests.docs.runner import environment, run

LIMIT_S = 1800  # of a block; a build takes minutes
OF_THE_BUILD = ("RINGKERN_CUDA", "RINGKERN_CUDA_ARCHS")


def work_through(repository: Path, folder: Path) -> int:
    """Returns the number of blocks that do not do what the pages state."""
    clone, venv = folder / "ringkern", folder / "venv"
    subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    env = environment()
    env["PATH"] = os.pathsep.join([str(venv / "bin"), os.environ.get("PATH", os.defpath)])
    env["XDG_CACHE_HOME"] = str(folder / "cache")  # no tuning of the user's
    env |= {name: os.environ[name] for name in OF_THE_BUILD if name in os.environ}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        env.pop(name, None)
    wrong = 0
    for page in PAGES:
        page = clone / page.relative_to(ROOT)
        blocks = blocks_of(page)
        for name, text in ((b.name, b.text) for b in blocks):
            if name:
                (clone / name).write_text(text)
        printed = said_to_print(blocks)
        for block in blocks:
            wrong += not _works(block, printed.get(block, ""), clone, env)
    return wrong


def _works(block: Block, printed: str, clone: Path, env: dict[str, str]) -> bool:
    """Runs a block of sh or pycon, and reports the outcome."""
    if block.language == "pycon":
        (clone / ".block").write_text(block.text)
        script, shown = "python -m doctest .block && rm .block", [block.text.splitlines()[0]]
    elif block.language == "sh":
        left = {command: run_elsewhere(command) for command in block.commands}
        script = "\n".join(command for command, by in left.items() if not by)
        shown = [f"{command}   [left to {by}]" if by else command for command, by in left.items()]
    else:
        return True
    begun = time.monotonic()
    try:
        done = run(script, clone, LIMIT_S, env)
        missing = missing_lines(printed, done.output)
        why = f"exit status {done.status}" if done.status else f"missing: {missing}" * bool(missing)
    except TimeoutError as error:
        why, done = str(error), None
    for command in shown:
        print(f"{block}: {command}")
    print(f"    {why or 'good'}, {time.monotonic() - begun:.0f} s", flush=True)
    if why and done:
        print(done.output)
    return not why


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT, help="what to clone (this one)")
    repository = parser.parse_args().repository
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    with tempfile.TemporaryDirectory(prefix="ringkern-readme-") as folder:
        wrong = work_through(repository, Path(folder))
    print("OK" if not wrong else f"FAILED: {wrong} blocks do not do what the page says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
