"""vLLM with the plug-in serves a small model: `make serve`, which has vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

if not (PYTHON := os.environ.get("RK_VLLM")):
    pytest.skip("needs vLLM, which takes 3 GB: make serve", allow_module_level=True)

PROGRAM = Path(__file__).with_name("engine.py")
LIMIT_S = 280
Engine = subprocess.Popen[str]
Start = Callable[..., Engine]


@pytest.fixture
def start(model: Path) -> Iterator[Start]:
    """Starts an engine with two ranks, or as many as the settings of vLLM's ``LLM`` say."""
    before = set(os.listdir("/dev/shm"))
    running: list[Engine] = []

    def run(plugins: str = "ringkern", ranks: int = 2, **settings: Any) -> Engine:
        cores = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(ranks))
        settings |= {"tensor_parallel_size": ranks, "kv_cache_memory_bytes": 1 << 26}
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
            "VLLM_PLUGINS": plugins,
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "HF_HUB_OFFLINE": "1",
        }
        engine = subprocess.Popen(
            [str(PYTHON), str(PROGRAM), str(model), json.dumps(settings)],
            cwd=model,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.append(engine)
        return engine

    yield run
    for engine in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)  # and its workers
        engine.wait()
    # vLLM's own queues go a moment after their processes.
    end = time.monotonic() + 20
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


def _output(engine: Engine, limit_s: float = LIMIT_S) -> str:
    output = engine.communicate(timeout=limit_s)[0]
    assert engine.returncode == 0, output
    return output


def _tokens(output: str) -> list[list[int]]:
    (line,) = re.findall(r"^TOKENS (.*)$", output, re.MULTILINE)
    tokens: list[list[int]] = json.loads(line)
    return tokens


@pytest.mark.timeout(3 * LIMIT_S)
def test_the_tokens_are_those_of_vllm(start: Start) -> None:
    """One engine without the plug-in, and then two with it at the same time."""
    own = _output(start(plugins=""))
    assert "over ringkern" not in own
    tokens = _tokens(own)
    assert len({str(each) for each in tokens}) == 3  # they depend on the prompt
    with ThreadPoolExecutor() as pool:  # an engine whose output nobody reads would stop
        outputs = list(pool.map(_output, [start(), start()]))
    for output in outputs:
        assert output.count("Group tp:0: 2 ranks over ringkern") == 2
        assert _tokens(output) == tokens


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named(start: Start, victim: int) -> None:
    """The survivor names it and ends. With vLLM's kernel it polls until vLLM kills it after 9 s."""
    engine = start(kill=victim)
    assert engine.stdout is not None
    came = [(time.time(), line) for line in engine.stdout]
    output = "".join(line for _, line in came)
    (killed,) = re.findall(r"^KILLED (\d+) ([\d.]+)$", output, re.MULTILINE)
    (failed,) = re.findall(r"^FAILED ([\d.]+) EngineDeadError$", output, re.MULTILINE)
    said = re.compile(rf"rank {victim} \(pid {killed[0]}\) died \(killed by signal 9")
    at, report = next((at, line) for at, line in came if said.search(line))
    named, ended = at - float(killed[1]), float(failed) - float(killed[1])
    print(
        f"worker {victim} is named {named:.2f} s after its end; the caller's error: {ended:.2f} s"
    )
    # Between two steps the survivor is in no call that could fail.
    if f"rank {1 - victim} was in no call" not in report:
        assert re.search(rf"PeerLostError: {said.pattern}", output), output
    assert named < 5


@pytest.mark.timeout(2 * LIMIT_S)
def test_16_ranks(start: Start) -> None:
    """More than vLLM's kernel can have, which is 8."""
    output = _output(start(ranks=16, gpu_memory_utilization=0.02), 2 * LIMIT_S)
    assert output.count("Group tp:0: 16 ranks over ringkern") == 16, output
    assert [len(each) for each in _tokens(output)] == [24] * 3
