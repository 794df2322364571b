"""Measures the costs that ``auto`` goes by on this GPU, as ``python -m ringkern tune`` does.

The file that it writes is among the results, for whoever wants to keep it.
"""

from __future__ import annotations

import json

from bench.gpu.part import Context, Failed

SECONDS = 60.0  # of 2, 4 and 8 ranks together


def run(context: Context) -> None:
    context.use_ringkern()
    from ringkern.tools import main

    found, kept = context.work / "tune.json", context.work / "tuning.json"
    for path in (found, kept):
        path.unlink(missing_ok=True)
    seconds = str(SECONDS / 2 if context.quick else SECONDS)
    # In this process, whose ringkern is the one that was built.
    status = main(
        ["tune", "--device", "cuda", "--seconds", seconds, "--out", str(kept), "--json", str(found)]
    )
    if status:
        raise Failed(f"tune ended with {status}")
    context.note(tuning=json.loads(kept.read_text()), found=json.loads(found.read_text()))
