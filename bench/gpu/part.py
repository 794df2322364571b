"""The input of a part, and the process that it runs in."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu import device as devices
from bench.gpu.bounded import ROOT, run_bounded

WITHOUT_A_GPU = 4.0  # all limits, times: a few cores take longer, to compile and to rehearse


class Skipped(Exception):
    """The part has nothing to do here; the text says why."""


class Compiled(Exception):
    """The part has compiled its programs; only a GPU can run them."""


class Failed(Exception):
    """A fault that the part has found."""


@dataclass
class Context:
    """The settings of a part, and the place of its results.

    Attributes:
        name: the part's.
        state: the file where figures are kept while it runs.
        work: directory of builds, kept from run to run.
        device: "cuda", or "cpu" in a rehearsal.
        quick: fewer cases, sizes and repeats.
        nccl: path of a libnccl, or "".
        seconds: after which the part is ended from outside.
        machine: as in the results.
        compiles: the parts compile; ``False`` in a rehearsal with what ``make build`` has made.
        prebuilt: directory of a library and programs built elsewhere, or "".
        prebuilt_extension: path of an extension built elsewhere, or "".
        figures: what was found; ``note`` keeps it.
        missing: what there was no time for; ``cut`` adds to it.
    """

    name: str
    state: Path
    work: Path
    device: str
    quick: bool
    nccl: str
    seconds: float
    machine: dict[str, Any]
    compiles: bool = True
    prebuilt: str = ""
    prebuilt_extension: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def rehearsal(self) -> bool:
        return self.device == "cpu"

    def left(self, share: float = 0.9) -> float:
        """Seconds until that share of the part's time is used up; negative afterwards."""
        return self.seconds * share - (time.monotonic() - self.started)

    def note(self, **figures: Any) -> None:
        """Keeps figures, also if the part is ended the moment after."""
        self.figures.update(figures)
        write_json(self.state, {"figures": self.figures})

    def cut(self, what: str) -> None:
        """Notes that there was no time for something: the part does not count as passed."""
        self.missing.append(what)
        self.note(missing=self.missing)

    def needs_gpu(self) -> None:
        """Ends the part here where there is no GPU.

        Raises:
            Compiled: this is a rehearsal.
        """
        if self.rehearsal:
            raise Compiled("compiled; needs a GPU")

    def compile(self, source: str, *libraries: str) -> Path:
        """The program made of a source of this folder, by nvcc for this GPU, or prebuilt."""
        if self.prebuilt:
            return Path(self.prebuilt) / Path(source).stem
        nvcc = devices.find_nvcc()
        if not nvcc:
            raise Skipped(devices.NO_NVCC)
        program = self.work / Path(source).stem
        program.parent.mkdir(parents=True, exist_ok=True)
        architecture = devices.architecture(self.machine)
        self.run([*nvcc_command(nvcc, source, architecture), *libraries, "-o", str(program)])
        return program

    def run(
        self, command: list[str], *, seconds: float = float("inf"), check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end, or for some seconds, and shows and returns its output.

        Raises:
            subprocess.TimeoutExpired: its time was over, or the part's.
            Failed: its exit status was not 0, and ``check``.
        """
        print("+", *command, flush=True)
        limit = max(1.0, min(seconds, self.left(0.95)))
        texts: list[str] = []
        with (
            tempfile.NamedTemporaryFile("w") as output,
            open(output.name, errors="replace") as shown,
        ):

            def show() -> None:
                texts.append(shown.read())
                print(texts[-1], end="", flush=True)

            code = run_bounded(command, limit, output, grace=1.0, tick=show)  # less than this has
            show()
        text = "".join(texts)
        if code is None:
            raise subprocess.TimeoutExpired(command, round(limit))
        if check and code:
            lines = text.strip().splitlines() or [""]
            told = next((line for line in lines if "error:" in line), lines[-1])
            raise Failed(f"{Path(command[0]).name} ended with {code}: {told}")
        return subprocess.CompletedProcess(command, code, text)

    def use_ringkern(self) -> None:
        """From here on, ``import ringkern`` is the one that the part ``extension`` has made."""
        site = self.work / "site"
        if not (site / "ringkern").is_dir():
            raise Failed("ringkern is not built; run the part extension first")
        sys.path.insert(0, str(site))  # ranks that are spawned inherit it


def nvcc_command(nvcc: str, source: str, architecture: str) -> list[str]:
    """How a source of this folder is compiled; a test does so without a GPU."""
    folder = Path(__file__).parent
    return [
        *(nvcc, "-O3", "-std=c++20", f"-arch=sm_{architecture}", "--expt-relaxed-constexpr"),
        *("-Xcompiler=-Wall", "-DRK_WITH_CUDA=1", "-I", str(ROOT / "csrc")),
        str(folder / source),
    ]


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(content, indent=1, default=str) + "\n")
    fresh.replace(path)


def save_context(context: Context, path: Path) -> None:
    """For ``run_child`` in the part's process."""
    told = asdict(context)
    for inner in ("figures", "missing", "started"):
        del told[inner]
    write_json(path, told)


def run_child(module: str, path: Path) -> int:
    """The part's process: runs it, and leaves its status beside its figures."""
    told = json.loads(path.read_text())
    for key in ("state", "work"):
        told[key] = Path(told[key])
    context = Context(**told)
    # Processes that this part has started, in groups of their own, end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Ranks meet on this machine; to look its name up may take long where there is no network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    status, reason = "passed", ""
    try:
        importlib.import_module(f"bench.gpu.{module}").run(context)
    except Compiled as compiled:
        status, reason = "compiled", str(compiled)
    except Skipped as skipped:
        status, reason = "skipped", str(skipped)
    except Failed as failed:
        status, reason = "failed", str(failed)
    except subprocess.TimeoutExpired as late:
        status, reason = "timed out", f"{late.cmd[0]} was ended after {late.timeout:.0f} s"
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        status, reason = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
    if context.missing:
        status = "partial" if status == "passed" else status
        reason = "; ".join(filter(None, [reason, f"no time for {', '.join(context.missing)}"]))
    found = {"status": status, "reason": reason, "figures": context.figures}
    write_json(context.state, found)
    print(f"{context.name}: {status}{': ' if reason else ''}{reason}", flush=True)
    return 0
