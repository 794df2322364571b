"""Checks ringkern's backend with torch's own tests of backends.

    python -m tests.conformance                       both backends, 2, 3 and 4 ranks
    python -m tests.conformance --match all_reduce --ranks 2 --verbose
    python -m tests.conformance --pytorch DIR         of groups whose ranks change: torch 2.14 on

torch ships these tests in its wheel, but those of groups whose ranks change: DIR is a checkout of
PyTorch that has them. ringkern must pass every test that Gloo passes; known.py lists
the exceptions with reasons. Gloo runs beside ringkern each time, because a stored list of its
passes would depend on the machine and on torch's version. Both take about a minute on two cores,
because ranks are kept from test to test and do not pause where they meet.

Exit status: 0 if ringkern conforms; 1 if not, or if known.py lists too much; 2 if nothing was
shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from importlib.metadata import version
from pathlib import Path

from tests.conformance import compare, reconfigure, report
from tests.conformance.known import Known, known_in
from tests.conformance.pool import CannotStart, Pool, prepare
from tests.conformance.rank import Outcome

TORCH_SUITE = "tests.conformance.suite:TorchSuite"
RECONFIGURE_SUITE = "tests.conformance.reconfigure:FaultTolerance"
TORCH_MODULES = ("torch.distributed", "torch.testing._internal.common_distributed")
BACKENDS = ("gloo", "ringkern")


def main(arguments: Sequence[str] | None = None, known: Sequence[Known] | None = None) -> int:
    options = _parser().parse_args(arguments)
    torch = version("torch")
    if options.pytorch:
        options.suite, options.ranks, known = RECONFIGURE_SUITE, [reconfigure.RANKS], ()
        os.environ[reconfigure.PYTORCH] = os.path.abspath(options.pytorch)
    known = known_in(torch) if known is None else known
    backends = BACKENDS if options.backend is None else (options.backend,)
    try:
        results = _run_all(backends, options)
    except CannotStart as error:
        print(f"the ranks did not start: {error}", file=sys.stderr)
        return 2
    gloo, ours = results.get("gloo"), results.get("ringkern")
    found: list[compare.Difference] = []
    errors: list[str] = []
    if gloo is not None and ours is not None:
        whole = options.suite == TORCH_SUITE and not options.match
        found = compare.differences(gloo, ours, known)
        errors = compare.errors(gloo, ours, known, whole)
    else:
        errors = _failed(results, known)
    if options.json:
        text = json.dumps(report.as_json(torch, results, found, errors), indent=1)
        Path(options.json).write_text(text + "\n")
    _tell(torch, results, found, errors, options.verbose)
    if not any(run for runs in results.values() for run in runs.values()):
        print("no such test", file=sys.stderr)
        return 2
    return 1 if errors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=BACKENDS, help="this one alone, compared with nothing")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4], metavar="N")
    parser.add_argument("--match", default="", metavar="RE", help="tests with this in their name")
    parser.add_argument("--json", metavar="FILE", help="write all outcomes there")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="of each test")
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help="runs at the same time")
    parser.add_argument("--suite", default=TORCH_SUITE, help="other tests, as in planted.py")
    parser.add_argument("--pytorch", metavar="DIR", help="a checkout: tests of changing groups")
    parser.add_argument("--verbose", action="store_true", help="every test, and whole tracebacks")
    return parser


def _run_all(backends: Sequence[str], options: argparse.Namespace) -> dict[str, compare.Runs]:
    """Every backend with every number of ranks, ``options.jobs`` of these runs at a time."""
    results: dict[str, compare.Runs] = {backend: {} for backend in backends}
    stop = threading.Event()
    pools: list[Pool] = []
    prepare(TORCH_MODULES if options.suite == TORCH_SUITE else ())

    def run(backend: str, ranks: int) -> None:
        if stop.is_set():
            return
        start = time.monotonic()
        with Pool(options.suite, backend, ranks, options.timeout) as pool:
            pools.append(pool)
            results[backend][ranks] = _run(pool, options, stop)
        if not stop.is_set():
            told = report.counts(results[backend][ranks])
            seconds = time.monotonic() - start
            print(f"{backend}, {ranks} ranks: {told} in {seconds:.0f} s", flush=True)

    with ThreadPoolExecutor(options.jobs) as executor:
        most_first = sorted(set(options.ranks), reverse=True)
        runs = [executor.submit(run, backend, n) for n in most_first for backend in backends]
        try:
            done, _ = wait(runs, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for pool in pools:
                pool.interrupt()
    for ended in done:
        ended.result()  # raises what the first that failed did
    return results


def _run(pool: Pool, options: argparse.Namespace, stop: threading.Event) -> dict[str, Outcome]:
    run = {}
    for test, skipped in pool.tests().items():
        if stop.is_set() or not re.search(options.match, test):
            continue
        run[test] = outcome = Outcome("skipped", reason=skipped) if skipped else pool.run(test)
        if options.verbose:
            told = " ".join((f"{outcome.seconds:6.2f} s", outcome.status, outcome.reason))
            print(f"{pool.backend}, {pool.ranks} ranks, {test}: {told}", flush=True)
    return run


def _failed(results: dict[str, compare.Runs], known: Sequence[Known]) -> list[str]:
    explained = {entry.test for entry in known}
    return [
        f"{test} at {ranks} ranks: {outcome.reason}"
        for backend, runs in results.items()
        for ranks, run in sorted(runs.items())
        for test, outcome in run.items()
        if outcome.status == "failed" and not (backend == "ringkern" and test in explained)
    ]


def _tell(
    torch: str,
    results: dict[str, compare.Runs],
    found: Sequence[compare.Difference],
    errors: Sequence[str],
    verbose: bool,
) -> None:
    print(f"\ntorch {torch}, {os.cpu_count()} cores\n\n{report.table(results)}")
    for title, text in (
        ("Failures", report.failures(results, verbose)),
        ("Differences", report.differing(found)),
        ("Errors", "\n".join(errors)),
    ):
        if text:
            print(f"\n{title}:\n{text}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
