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

from bench.gpu import alone, device, resume, runner, summary  # noqa: E402
from bench.gpu.parts import Part, ordered, runs, select  # noqa: E402

DESCRIPTION = """\
Builds the CUDA kernels for this GPU, proves them and measures them. One part follows the other,
each in a process of its own, for a bounded time. Without a GPU it says so and ends with 0."""
BUDGET = 560.0  # seconds
LAST = "the last run"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser("python3 bench/gpu", description=DESCRIPTION)
    add = p.add_argument
    add("--plan", action="store_true", help="print the runs with their parts, and run none")
    add("--parts", metavar="A,B,...", help="run these and what they need, in their usual order")
    add("--out", type=Path, metavar="DIR", help="for the results (default: $OUT, or build/gpu)")
    add("--budget", type=float, metavar="S", help=f"seconds of a run (default: {BUDGET:.0f})")
    add("--continue", dest="earlier", nargs="?", const=LAST, metavar="SUMMARY",
        help="run what an earlier run left; give its summary.json if it ran elsewhere")  # fmt: skip
    add("--prebuilt", type=Path, metavar="DIR", help="use what a preflight built, if it fits")
    add("--memory", choices=("auto", "ipc", "host"), help="between ranks: RINGKERN_CUDA_MEMORY")
    add("--quick", action="store_true", help="fewer cases, sizes and repeats")
    add("--nccl", type=Path, metavar="LIB", help="libnccl.so.2 from 2.30.3 on, to measure beside")
    add("--files", action="store_true", help="write a file for each part, too")
    mode = p.add_mutually_exclusive_group()
    mode.add_argument("--preflight", action="store_true",
                      help="without a GPU: compile, import, and run what a CPU can")  # fmt: skip
    mode.add_argument("--rehearse", action="store_true",
                      help="run what a CPU can, with what `make build` has made")  # fmt: skip
    add("--arch", default="90", metavar="N", help="what a preflight compiles for (default: 90)")
    add("--child", nargs=2, help=argparse.SUPPRESS)  # a part's process
    add("--contest", nargs=2, type=Path, help=argparse.SUPPRESS)  # one of the part speed
    add("--alone", action="store_true", help=argparse.SUPPRESS)  # without a network already
    return p


def main(arguments: list[str] | None = None) -> int:
    """Runs the parts; the exit status: 0, 1 if one failed, 2 for what cannot be done at all."""
    given = sys.argv[1:] if arguments is None else arguments
    args = parser().parse_args(given)
    if args.memory:
        os.environ["RINGKERN_CUDA_MEMORY"] = args.memory  # of the parts, too
    if args.child:
        from bench.gpu.part import run_child

        return run_child(args.child[0], Path(args.child[1]))
    if args.contest:
        from bench.gpu.contest import run_contest

        run_contest(*args.contest)
        return 0
    try:
        return _run(args, given)
    except ValueError as error:
        parser().error(str(error))


def _run(args: argparse.Namespace, given: list[str]) -> int:
    without_gpu = args.preflight or args.rehearse
    parts = select(args.parts)
    for path, option in ((args.nccl, "--nccl"), (args.prebuilt, "--prebuilt")):
        if path and not path.exists():
            raise ValueError(f"{option} {path}: there is no such file or directory")
    if args.plan and not args.prebuilt and not args.earlier:
        return _show_plan(args, parts)
    found = device.stand_in(args.arch) if without_gpu else device.find()
    if not found.count:
        print(f"ringkern gpu: {found.reason}: nothing to run; see bench/README.md")
        return 0
    if not without_gpu and (missing := device.missing_torch()):
        print(f"ringkern gpu: {missing}", file=sys.stderr)
        return 2
    from bench.gpu import pieces  # which a machine without a GPU does not need

    machine = found.describe()
    work = ROOT / "build" / _work_folder(args)
    earlier = []
    if args.earlier:
        summary_file = work / "summary.json" if args.earlier == LAST else Path(args.earlier)
        earlier = resume.load(summary_file, machine)
        parts = resume.remaining(parts, earlier)
    taken = pieces.take(args.prebuilt, machine) if args.prebuilt else pieces.Taken()
    for reason in taken.reasons:
        print(f"--prebuilt: does not fit, and is built anew: {reason}", flush=True)
    parts = ordered(parts, taken.parts, args.quick)
    if args.plan:
        return _show_plan(args, parts)
    if args.preflight and not args.alone:
        alone.start_again(given)  # where that is possible; it does not come back then
    out = args.out or Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    settings = runner.Settings(
        out=out.resolve(),
        work=work,
        device="cpu" if without_gpu else "cuda",
        quick=args.quick or without_gpu,  # a CPU takes minutes for all cases
        nccl=str(args.nccl.resolve()) if args.nccl else "",
        budget=args.budget or (None if without_gpu else BUDGET),
        files=args.files,
        compiles=not args.rehearse,
        prebuilt=taken.core,
        prebuilt_extension=taken.extension,
        command=shlex.join(["python3", "bench/gpu", *given]),
    )
    # The part at hand, and all that it started, end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.preflight:
        print(f"preflight for sm_{args.arch}, torch {machine['torch']}, nvcc {machine['nvcc']}, "
              f"Python {machine['python']}, {alone.enter(args.alone)}", flush=True)  # fmt: skip
    made_of = pieces.identity(machine)
    resume.restore(earlier, work)
    results = runner.merged(earlier, runner.run(parts, settings, machine, earlier))
    print(summary.table(results), flush=True)
    if args.preflight:
        built = {result.part for result in results if result.status in ("passed", "compiled")}
        print(f"\nfor --prebuilt: {pieces.leave(work, made_of, built)}", flush=True)
    return 1 if any(result.failed for result in results) else 0


def _work_folder(args: argparse.Namespace) -> str:
    return "gpu-preflight" if args.preflight else "gpu-rehearsal" if args.rehearse else "gpu-work"


def _show_plan(args: argparse.Namespace, parts: tuple[Part, ...]) -> int:
    print(summary.plan(runs(parts, args.budget or BUDGET)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
