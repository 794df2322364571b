"""The examples of `init_process_group("ringkern")` train like with Gloo."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests import forked

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 150

# The values of which each example prints a curve.
CURVES = {
    "ddp": [
        "plain",
        "no_sync",
        "find_unused_parameters",
        "static_graph",
        "gradient_as_bucket_view",
    ],
    "ddp_comm_hooks": ["powerSGD_hook", "fp16_compress_hook", "bfloat16_hook"],
    "ddp_shared": ["ordinary", "shared"],
    "ddp_join": ["Join([model])", "model.join()", "Join([model, optimizer])"],
    "elastic": ["no rank dies", "rank 1 dies"],
    "evaluate": ["loss", "worst", "accuracy", "F1"],
    "launch": [
        "torchrun",
        "processes",
        "spawn, ringkern",
        "spawn, cpu:ringkern",
        "spawn, cpu:gloo,cuda:ringkern",
    ],
    "pipeline": ["GPipe", "1F1B", "interleaved 1F1B"],
    "pipeline_by_hand": ["loss"],
    "zero_optimizer": [
        "until it is saved",
        "goes on",
        "loaded, and goes on",
        "share of Adam's state",
    ],
}

Curves = dict[str, list[tuple[float, float]]]  # curves of each example, by step: ringkern's, Gloo's


def run(name: str, *arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], Curves]:
    done = subprocess.run(
        [forked.python(), str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHON_EXEC": forked.python()},  # torchrun starts ranks with it
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    curves: Curves = {}
    row = re.compile(r"^(\S.*?) +(\d+) +([-+.\de]+|nan) +([-+.\de]+|nan)$", re.MULTILINE)
    for what, step, ours, gloos in row.findall(done.stdout):
        curve = curves.setdefault(what, [])
        assert int(step) == len(curve) + 1
        curve.append((float(ours), float(gloos)))
    return done, curves


Default = Callable[[str], tuple[subprocess.CompletedProcess[str], Curves]]


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Default:
    """Runs an example without arguments, once for all tests. It must leave no file behind."""
    seen: dict[str, tuple[subprocess.CompletedProcess[str], Curves]] = {}

    def default(name: str) -> tuple[subprocess.CompletedProcess[str], Curves]:
        if name not in seen:
            folder = tmp_path_factory.mktemp(name)
            seen[name] = run(name, cwd=folder)
            assert not list(folder.iterdir())
        return seen[name]

    return default


@pytest.mark.parametrize("name", CURVES)
def test_example(name: str, default: Default) -> None:
    done, curves = default(name)
    assert done.returncode == 0, done.stdout + done.stderr
    title, backends, *_, difference, verdict = done.stdout.splitlines()
    assert re.fullmatch(rf"{name}\.py, [234] ranks", title)
    assert backends.split() == ["ringkern", "gloo"]
    assert list(curves) == CURVES[name]
    exact = name != "evaluate"  # four ranks add in another order
    for what, curve in curves.items():
        for ours, gloos in curve:
            assert math.isfinite(ours)
            assert ours == (gloos if exact else pytest.approx(gloos, rel=1e-8)), what
        if len(curve) > 1:
            assert curve[-1][0] < curve[0][0], what
    accepted = "0" if exact else "1e-12"
    assert re.fullmatch(rf"largest difference: \S+ \(accepted: {accepted}\)", difference)
    assert verdict == "OK"


def test_options_of_ddp_do_not_change_the_losses(default: Default) -> None:
    _, curves = default("ddp")
    # The same gradients in other buckets, or as four small batches that add up to a large one.
    for what in ("static_graph", "gradient_as_bucket_view", "no_sync"):
        for (ours, _), (plain, _) in zip(curves[what], curves["plain"], strict=True):
            assert ours == pytest.approx(plain, rel=1e-6), what


def test_a_loaded_optimizer_goes_on_as_the_saved_one(default: Default) -> None:
    _, curves = default("zero_optimizer")
    assert curves["loaded, and goes on"] == curves["goes on"]


def test_a_restart_changes_nothing(default: Default) -> None:
    _, curves = default("elastic")
    assert curves["rank 1 dies"] == curves["no rank dies"]


def test_more_ranks_agree_within_rounding(tmp_path: Path) -> None:
    done, curves = run("ddp", "--ranks", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ddp.py, 3 ranks\n")
    assert done.stdout.endswith("(accepted: 1e-05)\nOK\n")
    assert list(curves) == CURVES["ddp"]


def test_an_example_fails_where_a_rank_does(tmp_path: Path) -> None:
    done, curves = run("pipeline_by_hand", "--backends", "nonsense", "gloo", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nonsense" in done.stderr
    assert not curves


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", EXAMPLES / "compare.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NEXT = math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(
    ("ranks", "ours", "status"),
    [
        (2, [{"a": [2.0, 1.0]}, {}], 0),
        (2, [{"a": [2.0, NEXT]}, {}], 1),  # equal to the last bit
        (3, [{"a": [2.0, NEXT]}, {}, {}], 0),
        (3, [{"a": [2.0, 1.1]}, {}, {}], 1),
        (3, [{"a": [2.0, math.nan]}, {}, {}], 1),
        (2, [{}, {}], 1),
    ],
)
def test_report(
    compare: ModuleType,
    capsys: pytest.CaptureFixture[str],
    ranks: int,
    ours: list[dict[str, list[float]]],
    status: int,
) -> None:
    gloos = [{"a": [2.0, 1.0]} if losses else {} for losses in ours]
    args = argparse.Namespace(ranks=ranks, backends=["ringkern", "gloo"])
    assert compare.report(args, [ours, gloos], tolerance=1e-5) == status
    assert capsys.readouterr().out.endswith(
        "OK\n" if status == 0 else "FAILED: the losses differ\n"
    )


def test_report_of_unequal_numbers_of_losses(compare: ModuleType) -> None:
    args = argparse.Namespace(ranks=2, backends=["ringkern", "gloo"])
    with pytest.raises(ValueError, match="zip"):
        compare.report(args, [[{"a": [1.0]}], [{"a": [1.0, 1.0]}]], tolerance=1e-5)


def test_going_on(tmp_path: Path) -> None:
    """Gradients are averaged over the ranks that are left: as many shares in one process."""
    done, _ = run("going_on", "--ranks", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("OK\n")
    assert "4 ranks and a new one have ended with [0, -9, 0, 0, 0]" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_weights_and_logits(tmp_path: Path, dtype: str) -> None:
    """On every number of ranks, and after a kill: the examples compare digests."""
    for name, runs in (("same_weights", 6), ("same_logits", 3)):
        steps = ["--steps", "30"] if name == "same_weights" else []
        done, _ = run(name, "--dtype", dtype, *steps, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(re.findall(r"^\d ranks", done.stdout, re.MULTILINE)) == runs
        assert done.stdout.endswith("OK\n")
    assert not list(tmp_path.iterdir())


def test_readme_lists_every_example() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")} - {"compare.py"}
    table = (EXAMPLES / "README.md").read_text()
    assert names == set(re.findall(r"^\| `(\w+\.py)` \|", table, re.MULTILINE))
