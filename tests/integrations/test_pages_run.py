"""The programs of how-to pages whose packages are too large for `make test` run: `make serve`.

Their commands and outputs are the blocks of text of the page, in turn.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of, missing_lines, programs_of
from tests.docs.runner import environment, run

if not (PYTHON := os.environ.get("RK_VLLM")):
    pytest.skip(
        "needs transformers and Ray, which take 650 MB: make serve", allow_module_level=True
    )

LIMIT_S = 240


@pytest.fixture
def folder() -> Iterator[Path]:
    """Makes a folder with a short name: a path to Ray's sockets has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rk-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("page", ["ray_train", "transformers"])
def test_a_page_runs_as_it_stands(page: str, folder: Path) -> None:
    blocks = blocks_of(ROOT / "docs" / "howto" / f"{page}.md")
    for name, text in programs_of(blocks).items():
        (folder / name).write_text(text)
    command, printed = (block.text for block in blocks if block.language == "text")
    env = environment() | {
        "PATH": f"{Path(str(PYTHON)).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "RAY_COLOR_PREFIX": "0",
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = run(command, folder, LIMIT_S, env)
    assert done.status == 0, done.output
    assert not missing_lines(printed, done.output), done.output
