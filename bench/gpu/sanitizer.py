"""compute-sanitizer over a reduced matrix of collectives: see sanitize.cpp."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

from bench.gpu import build
from bench.gpu.part import Context, Failed, Skipped

# Ranks, elements and channels, 0 for all that there are. racecheck is the slowest by far: it comes
# last, for all the time that is left.
TOOLS = {
    "memcheck": ("3", "20000", "0"),
    "synccheck": ("3", "5000", "0"),
    "racecheck": ("2", "5000", "2"),
}
QUICK = ("2", "1000", "2")


def run(context: Context) -> None:
    library = build.product(context, build.CORE_LIBRARY)
    program = str(context.compile("sanitize.cpp", str(library), "-lpthread"))
    context.needs_gpu()
    cuda = "/usr/local/cuda"
    places = [os.environ.get("PATH", os.defpath), f"{cuda}/bin", f"{cuda}/compute-sanitizer"]
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if not tool:
        raise Skipped(f"no compute-sanitizer on PATH or in {cuda}")
    context.run([program])  # without a tool first: is it right at all?
    wrong = []
    for done, (name, size) in enumerate(TOOLS.items()):
        start = time.monotonic()
        found = check(
            context,
            tool,
            name,
            [program, *(QUICK if context.quick else size)],
            context.left() / (len(TOOLS) - done),
        )
        context.note(**{name: {**found, "seconds": round(time.monotonic() - start, 1)}})
        if found["status"] == "timed out":
            context.cut(f"{name}, which {found['reason']}")
        elif found["status"] != "passed":
            wrong.append(f"{name}: {found['reason']}")
    if wrong and all("not supported" in what for what in wrong):
        raise Skipped(wrong[0])
    if wrong:
        raise Failed("; ".join(wrong))


def check(
    context: Context, tool: str, name: str, program: list[str], seconds: float
) -> dict[str, str]:
    """Runs one of the tools on the program, for this many seconds at most."""
    command = [tool, "--tool", name, "--error-exitcode", "9", *program]
    try:
        done = context.run(command, seconds=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        return {"status": "timed out", "reason": f"was ended after {late.timeout:.0f} s"}
    return verdict(done.stdout, done.returncode)


def verdict(output: str, code: int) -> dict[str, str]:
    """Returns compute-sanitizer's findings: from its summary, its exit status and the program's."""
    if re.search(r"device (is )?not supported", output, re.IGNORECASE):
        return {"status": "skipped", "reason": "compute-sanitizer: device not supported"}
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) .*", output)
    if not summary:
        return {"status": "failed", "reason": f"no summary; it ended with {code}"}
    text = summary[0].strip()
    if int(summary[1]) or code:
        return {"status": "failed", "reason": f"{text} (status {code})"}
    return {"status": "passed", "reason": text}
