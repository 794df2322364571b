"""The C++ tests of the CUDA room on this GPU."""

from __future__ import annotations

import time

from bench.gpu import build
from bench.gpu.bounded import ROOT
from bench.gpu.part import Context, Failed


def run(context: Context) -> None:
    wrong = []
    targets = build.test_targets(ROOT)
    if not context.prebuilt:
        build.make(context, *targets)
    context.needs_gpu()
    for number, target in enumerate(targets, 1):
        print(f"[{number}/{len(targets)}] {target}", flush=True)
        start = time.monotonic()
        done = context.run([str(build.product(context, target))], check=False)
        ran = done.returncode == 0 and "there is nothing to" not in done.stdout
        context.note(**{target: {"passed": ran, "seconds": round(time.monotonic() - start, 1)}})
        if not ran:
            why = f"ended with {done.returncode}" if done.returncode else "saw no GPU"
            wrong.append(f"{target} {why}")
    if wrong:
        raise Failed("; ".join(wrong))
