"""``python -m ringkern doctor``."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ... import startup
from .. import options
from . import build, gpu, host, probe
from .check import Finding, State, unchecked

DESCRIPTION = """\
Checks whether rings work here: torch and the extension, limits, sockets, shared memory, GPUs, and
then real rings of a few ranks over every way that data takes. Each line is green, yellow (it works,
and could do better), red, or not checked; what is yellow or red has its fix below it."""

EPILOG = """\
Exits with 1 if a line is red. A test that hangs is ended; the whole is done in about 20 s where
all is well."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.epilog = EPILOG
    options.add_ranks(parser, "ranks of the rings")
    parser.add_argument("--no-rings", action="store_true", help="look only, start no ranks")
    options.add_timeout(parser, 600.0)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status: 1 if a line is red.

    Raises:
        ValueError: torchrun has started another number of ranks than requested.
    """
    if "RANK" not in os.environ:
        report = _Report(args.json)
        _progress("loading torch and the extension")
        loaded = report.look(args.ranks or 2)
        report.add(_rings(loaded, args.ranks or 2) if not args.no_rings else [])
        return report.end()
    startup.load()
    from .. import launch

    return launch.run(args.ranks, args.timeout, _joined, args)


class _Report:
    """Collects and prints the lines."""

    def __init__(self, file: Path | None, silent: bool = False) -> None:
        self._output, self._silent = options.Output(file), silent
        self._colors = self._output.lines.isatty() and "NO_COLOR" not in os.environ
        self._found: list[Finding] = []

    def look(self, ranks: int) -> dict[str, dict[str, Any]]:
        """Adds the findings that need no rings; returns the probe's answer."""
        loaded, driver = probe.ask(120.0), gpu.driver()
        self.add(build.findings(loaded, driver))
        self.add(gpu.findings(loaded, driver))
        self.add(host.findings(ranks, bool(loaded["cuda"].get("devices"))))
        return loaded

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._found.append(finding)
            if not self._silent:
                self._output.say(finding.text(self._colors))

    def end(self) -> int:
        """Prints the last line, and JSON; returns the exit status."""
        counts = Counter(finding.state for finding in self._found)
        if not self._silent:
            self._output.say("# " + ", ".join(f"{counts[state]} {state.value}" for state in State))
            self._output.json({"findings": [finding.as_dict() for finding in self._found]})
        return 1 if counts[State.RED] else 0


def _rings(loaded: dict[str, dict[str, Any]], ranks: int) -> Iterator[Finding]:
    if "error" in loaded["ringkern"]:
        yield unchecked("rings", "the extension does not load")
        return
    startup.load()
    from . import rings, smoke

    _progress("rings between processes and in one")
    yield from smoke.run([*rings.between_processes(), *rings.in_one_process()], ranks)
    gpus = len(loaded["cuda"].get("devices", ()))
    if not gpus or not loaded["ringkern"]["build"]["cuda"]:
        why = "ringkern was built without CUDA kernels" if gpus else "no GPU is visible to torch"
        yield unchecked("rings on GPUs", why)
        return
    _progress("rings on GPUs")
    yield from smoke.run(rings.on_gpus(gpus, ranks), ranks)


def _joined(args: argparse.Namespace) -> int:
    """Runs one of torchrun's ranks, in their group; rank 0 makes the other checks, and prints."""
    import torch
    import torch.distributed as dist

    from . import rings, smoke

    ranks = dist.get_world_size()
    report = _Report(args.json, silent=dist.get_rank() > 0)
    if dist.get_rank() == 0:
        report.look(ranks)
    if not args.no_rings:
        tests = [*rings.between_processes(), *rings.in_one_process()]
        if gpus := torch.cuda.device_count():
            tests += rings.on_gpus(gpus, ranks)
        else:
            report.add([unchecked("rings on GPUs", "no GPU is visible to torch")])
        dist.barrier()  # a test leaves little time to wait for rank 0
        report.add(smoke.joined(tests))
    return report.end()


def _progress(doing: str) -> None:
    """Prints a line for a user who waits at a terminal."""
    if sys.stderr.isatty():
        print(f"# {doing} ...", file=sys.stderr, flush=True)
