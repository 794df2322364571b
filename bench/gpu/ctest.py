"""The C++ tests of the CUDA room on this GPU."""

from __future__ import annotations

import time

from bench.gpu.bounded import ROOT
from bench.gpu.build import make, test_targets
from bench.gpu.part import Context, Failed


def run(context: Context) -> None:
    wrong = []
    targets = test_targets(ROOT)
    make(context, *targets)
    for target in targets:
        start = time.monotonic()
        done = context.run([str(context.work / "cmake" / target)], check=False)
        ran = done.returncode == 0 and "there is nothing to" not in done.stdout
        context.note(**{target: {"passed": ran, "seconds": round(time.monotonic() - start, 1)}})
        if not ran:
            why = f"ended with {done.returncode}" if done.returncode else "saw no GPU"
            wrong.append(f"{target} {why}")
    if wrong:
        raise Failed("; ".join(wrong))
