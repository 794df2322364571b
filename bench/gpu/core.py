"""The library without torch, and the C++ tests, for the GPU that is there and for no other."""

from __future__ import annotations

from bench.gpu import build, device
from bench.gpu.bounded import ROOT
from bench.gpu.part import Context


def run(context: Context) -> None:
    build.only_where_compiled(context)
    if context.prebuilt:
        for name in (build.CORE_LIBRARY, *build.test_targets(ROOT)):
            build.product(context, name)
        context.note(built=f"taken from {context.prebuilt}")
        return
    build.make(context, "ringkern_core")
    summary = (context.work / "cmake" / "summary.txt").read_text().strip()
    context.note(architecture=device.architecture(context.machine), built=summary)
