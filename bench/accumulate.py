"""Measures all-reduces of small floats summed in float32: errors against the exact sum.

    python bench/accumulate.py --ranks 2,4,8,16 --json out.json

One process: every rank is a tensor on the CPU (``ringkern.local``). The error of an element is
relative to the sum of the magnitudes of what was added, so that sums that happen to come out near
zero do not stand for all the others; in units of 2^-p, where p is the number of bits of the dtype's
mantissa with the one that is not stored: the largest error of one rounding is 1. The exact sum is
made in float64, which takes these numbers without rounding; `rounded` is that sum in the dtype: no
result in the dtype can have a smaller error. `off` is the share of elements that are not that.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import sys
from datetime import date
from typing import NamedTuple

import torch

import ringkern
from ringkern import local

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
INPUTS = {  # of each rank, as gradients are: around zero; or all of one sign, which adds up
    "normal": torch.randn,
    "uniform": torch.rand,
}


class Row(NamedTuple):
    """Errors of one way of summing, in units of half a last bit of a number of that magnitude."""

    dtype: str
    inputs: str
    ranks: int
    accumulate: str
    mean: float
    most: float
    off_percent: float


def summed(tensors: list[torch.Tensor], accumulate: str) -> torch.Tensor:
    ranks = [tensor.clone() for tensor in tensors]
    local.ring_all_reduce(ranks, algorithm="two_shot", accumulate=accumulate)
    return ranks[0]


def rows_of(dtype: str, inputs: str, ranks: int, elements: int) -> list[Row]:
    generator = torch.Generator().manual_seed(ranks)
    kind = DTYPES[dtype]
    tensors = [INPUTS[inputs](elements, generator=generator).to(kind) for _ in range(ranks)]
    wide = [tensor.double() for tensor in tensors]
    exact = torch.stack(wide).sum(0)
    for element in range(0, elements, elements // 100 + 1):  # that float64 did not round it
        assert exact[element].item() == math.fsum(tensor[element].item() for tensor in wide)
    magnitudes = torch.stack(wide).abs().sum(0)
    rounded = exact.to(kind)
    unit = torch.finfo(kind).eps / 2  # 2^-p
    results = {
        "dtype": summed(tensors, "dtype"),
        "float32": summed(tensors, "float32"),
        "rounded": rounded,
    }
    rows = []
    for accumulate, result in results.items():
        errors = (result.double() - exact).abs() / magnitudes / unit
        off = float((result != rounded).double().mean() * 100)
        mean, most = float(errors.mean()), float(errors.max())
        rows.append(Row(dtype, inputs, ranks, accumulate, mean, most, off))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="2,4,8,16", help="numbers of ranks")
    parser.add_argument("--elements", type=int, default=1 << 20, help="of each tensor")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    about = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "ringkern": ringkern.__version__,
        "elements": arguments.elements,
    }
    for key, value in about.items():
        print(f"# {key}: {value}")
    print(f"{'dtype':10}{'inputs':10}{'ranks':>6}  {'sum':10}{'mean':>10}{'most':>10}{'off %':>8}")
    rows = [
        row
        for dtype in DTYPES
        for inputs in INPUTS
        for ranks in map(int, arguments.ranks.split(","))
        for row in rows_of(dtype, inputs, ranks, arguments.elements)
    ]
    for row in rows:
        print(
            f"{row.dtype:10}{row.inputs:10}{row.ranks:6}  {row.accumulate:10}"
            f"{row.mean:10.4f}{row.most:10.4f}{row.off_percent:8.2f}"
        )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({**about, "rows": [row._asdict() for row in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
