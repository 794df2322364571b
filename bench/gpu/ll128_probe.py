"""Litmus tests, with the kernels' own instructions, of what the protocols rely on: see litmus.cu.

LL128 relies on a warp's 128-byte line becoming visible whole to who saw its flag; LL on words of 8
bytes being whole; Simple on a fence and an acquire. ``wrong`` must be 0; ``mixed`` may be anything:
loads that saw two stores at once, which the protocols bear.
"""

from __future__ import annotations

import json
from typing import Any

from bench.gpu.part import Context, Failed

MEANING = {
    "line": "a word older than the flag: LL128 must not be used here",
    "word": "a torn word of 8 bytes: LL must not be used here",
    "publish": "data older than the acquired counter: Simple is wrong here",
}


def run(context: Context) -> None:
    program = context.compile("litmus.cu")
    context.needs_gpu()
    stores = 50_000 if context.quick else 1_000_000
    lines = json_lines(context.run([str(program), str(stores)]).stdout)
    context.note(tests=lines)
    wrong = [
        f"{line['from']}->{line['to']}: {line['wrong']} times {MEANING[line['test']]}"
        for line in lines
        if line["wrong"]
    ]
    vacuous = [line["test"] for line in lines if line["changes"] < 1000]
    if vacuous:
        wrong.append(f"too few changes were seen to say anything: {', '.join(vacuous)}")
    if wrong:
        raise Failed("; ".join(wrong))


def json_lines(text: str) -> list[dict[str, Any]]:
    """The lines of a program's output that are JSON objects."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
