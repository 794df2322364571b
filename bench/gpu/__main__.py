"""The command line: ``python3 bench/gpu``, which is what ``make gpu`` runs."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# All is imported as bench.gpu.<name>: this folder's modules have names that others have, too.
HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [str(ROOT), *(path for path in sys.path if os.path.realpath(path) != HERE)]

from bench.gpu import device, runner, summary  # noqa: E402
from bench.gpu.parts import PARTS, select  # noqa: E402

DESCRIPTION = """\
Builds the CUDA kernels for this GPU, proves them and measures them. One part follows the other,
each in a process of its own, for a bounded time. Without a GPU it says so and ends with 0."""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python3 bench/gpu", description=DESCRIPTION)
    add = p.add_argument
    add("--list", action="store_true", help="say what the parts are, and run none")
    add("--parts", metavar="A,B,...", help="run these only, in their usual order")
    add("--out", type=Path, metavar="DIR", help="for the results (default: $OUT, or build/gpu)")
    add("--budget", type=float, metavar="S", help="end within S seconds, with what fits")
    add("--quick", action="store_true", help="fewer cases, sizes and repeats")
    add("--nccl", type=Path, metavar="LIB", help="libnccl.so.2 from 2.30.3 on, to measure beside")
    add("--compact", action="store_true", help="write summary.json and log.txt only")
    add("--rehearse", action="store_true", help="what can be, on the CPU: to try this program out")
    add("--child", nargs=2, help=argparse.SUPPRESS)  # a part's process
    add("--contest", nargs=2, type=Path, help=argparse.SUPPRESS)  # one of the part speed
    return p


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts; the exit status: 0, 1 if one failed, 2 for what cannot be done at all."""
    given = sys.argv[1:] if arguments is None else arguments
    args = parser().parse_args(given)
    if args.child:
        from bench.gpu.part import run_child

        return run_child(args.child[0], Path(args.child[1]))
    if args.contest:
        from bench.gpu.contest import run_contest

        run_contest(*args.contest)
        return 0
    if args.list:
        print("\n".join(f"{part.name:14} {part.seconds:4.0f} s  {part.about}" for part in PARTS))
        return 0
    try:
        parts = select(args.parts)
    except ValueError as error:
        parser().error(str(error))
    if args.nccl and not args.nccl.is_file():
        parser().error(f"--nccl {args.nccl}: there is no such file")
    found = device.rehearsal() if args.rehearse else device.find()
    if not found.count:
        print(f"ringkern gpu: {found.reason}: nothing to run; see bench/README.md")
        return 0
    if not args.rehearse and (missing := device.missing_torch()):
        print(f"ringkern gpu: {missing}", file=sys.stderr)
        return 2
    out = args.out or Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    settings = runner.Settings(
        out=out.resolve(),
        work=ROOT / "build" / ("gpu-rehearsal" if args.rehearse else "gpu-work"),
        device="cpu" if args.rehearse else "cuda",
        quick=args.quick,
        nccl=str(args.nccl.resolve()) if args.nccl else "",
        budget=args.budget,
        compact=args.compact,
        command=shlex.join(["python3", "bench/gpu", *given]),
    )
    # The part at hand, and all that it started, end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = runner.run(parts, settings, found.describe())
    print(summary.table(results), flush=True)
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
