"""The examples that shard, split or compile a model: each compares its result with Gloo's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import forked, needs

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN_LIMIT_S = 110  # limit of each of an example's two runs
LIMIT_S = 2 * RUN_LIMIT_S + 30

LOSS = re.compile(r"^(\S.*?) +(\d+) +([\d.e+-]+) +([\d.e+-]+)$", re.MULTILINE)


def losses(example: str, cwd: Path, *arguments: str) -> dict[str, list[tuple[str, str]]]:
    """Runs an example; returns by name ringkern's and Gloo's loss of each step."""
    command = [forked.python(), str(EXAMPLES / example), "--timeout", str(RUN_LIMIT_S), *arguments]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cwd / "compiled")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\nOK\n"), done.stdout
    assert re.search(r"^ +ringkern +gloo$", done.stdout, re.MULTILINE), done.stdout
    found: dict[str, list[tuple[str, str]]] = {}
    for name, step, ours, theirs in LOSS.findall(done.stdout):
        found.setdefault(name, []).append((ours, theirs))
        assert int(step) == len(found[name])
    for name, curve in found.items():
        assert float(curve[-1][0]) < float(curve[0][0]), f"{name} learns nothing"
    return found


def same(curve: list[tuple[str, str]]) -> bool:
    """Compares to the last bit: 9 digits distinguish any two floats."""
    return all(ours == theirs for ours, theirs in curve)


@pytest.mark.parametrize(
    ("example", "names"),
    [
        ("fsdp2.py", ["fully_shard"]),
        ("tensor_parallel.py", ["DTensor", "TP x FSDP"]),  # 2 x 2 ranks: sums of two
        ("compiled.py", ["eager", "compiled"]),
        pytest.param(
            "deepspeed_zero.py",
            ["ZeRO stage 1", "ZeRO stage 2", "ZeRO stage 3"],
            marks=needs.package("deepspeed"),
        ),
        pytest.param(
            "accelerate_ddp_fsdp.py", ["DDP", "FSDP1", "FSDP2"], marks=needs.package("accelerate")
        ),
    ],
)
def test_losses_are_those_of_gloo(example: str, names: list[str], tmp_path: Path) -> None:
    found = losses(example, tmp_path)
    assert list(found) == names
    for curve in found.values():
        assert len(curve) >= 10
        assert same(curve)


STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"]


def test_fsdp1(tmp_path: Path) -> None:
    found = losses("fsdp1.py", tmp_path)
    assert list(found) == STRATEGIES
    # This one adds two floats between shards and two between copies; the others add four.
    assert same(found["HYBRID_SHARD"])


def test_fsdp1_with_two_ranks(tmp_path: Path) -> None:
    found = losses("fsdp1.py", tmp_path, "--ranks", "2")
    assert list(found) == STRATEGIES
    assert all(map(same, found.values()))


def test_fsdp2_with_uneven_shards(tmp_path: Path) -> None:
    assert list(losses("fsdp2.py", tmp_path, "--ranks", "3")) == ["fully_shard"]
