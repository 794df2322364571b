"""compute-sanitizer over a reduced matrix of collectives: see sanitize.cpp."""

from __future__ import annotations

import os
import re
import shutil
import time

from bench.gpu.part import Context, Failed, Skipped

# Ranks and elements: racecheck is slowest, by far.
TOOLS = {"memcheck": ("3", "20000"), "synccheck": ("3", "5000"), "racecheck": ("2", "5000")}


def run(context: Context) -> None:
    cuda = "/usr/local/cuda"
    places = [os.environ.get("PATH", os.defpath), f"{cuda}/bin", f"{cuda}/compute-sanitizer"]
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    if not tool:
        raise Skipped(f"no compute-sanitizer on PATH or in {cuda}")
    library = context.work / "cmake" / "libringkern_core.a"
    if not library.exists():
        raise Failed(f"{library} is not there; run the part build first")
    program = str(context.compile("sanitize.cpp", str(library), "-lpthread"))
    context.run([program])  # without a tool first: is it right at all?
    wrong = []
    for name, size in TOOLS.items():
        if context.left() < 10:
            context.note(**{name: {"status": "not run", "reason": "no time left"}})
            wrong.append(f"{name}: no time left")
            continue
        start = time.monotonic()
        command = [tool, "--tool", name, "--error-exitcode", "9", program, *size]
        if context.quick:
            command[-2:] = ["2", "1000"]
        done = context.run(command, check=False)
        found = verdict(done.stdout, done.returncode)
        context.note(**{name: {**found, "seconds": round(time.monotonic() - start, 1)}})
        if found["status"] != "passed":
            wrong.append(f"{name}: {found['reason']}")
    if wrong and all("not supported" in what for what in wrong):
        raise Skipped(wrong[0])
    if wrong:
        raise Failed("; ".join(wrong))


def verdict(output: str, code: int) -> dict[str, str]:
    """What compute-sanitizer found: from its summary line, its exit status and the program's."""
    if re.search(r"device (is )?not supported", output, re.IGNORECASE):
        return {"status": "skipped", "reason": "compute-sanitizer: device not supported"}
    summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) .*", output)
    if not summary:
        return {"status": "failed", "reason": f"no summary; it ended with {code}"}
    text = summary[0].strip()
    if int(summary[1]) or code:
        return {"status": "failed", "reason": f"{text} (status {code})"}
    return {"status": "passed", "reason": text}
