"""ringkern/_C.pyi is the extension's type stub; each signature is compared with the real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch  # noqa: F401  (loads the libraries that the extension needs)

import ringkern._C
from tests.build import stub

STUB = (Path(__file__).resolve().parents[2] / "ringkern" / "_C.pyi").read_text()

# Names that cannot be compared, with the reason.
EXCUSED = {
    "quick_all_reduce": "METH_FASTCALL: Python is not told what it takes; ops.py gives it all",
}


def differences(text: str) -> list[str]:
    return [
        difference
        for difference in stub.compare(text, ringkern._C)
        if difference.partition(":")[0] not in EXCUSED
    ]


def test_stub_is_that_of_the_extension() -> None:
    assert differences(STUB) == []


def test_excuses_are_needed() -> None:
    found = {difference.partition(":")[0] for difference in stub.compare(STUB, ringkern._C)}
    assert found == set(EXCUSED)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"def is_shared\(.*\n", "", "is_shared: the stub has none"),
        (r"wire_version: int\n", "", "wire_version: the stub has none"),
        (r"(?m)^def build_info", "def building", "building: the extension has none"),
        (r"    def abort\(.*\n", "", "Runner.abort: the stub has none"),
        (r"    wide: bool,\n\) -> tuple", ") -> tuple", "choose: the stub has (device"),
        (r"in_rank_order: bool,", "by_rank: bool,", "the stub takes by_rank"),
        (r"        \*,\n", "", "Plan.__init__: the stub takes workers where"),
        (r"workers: int = 1", "workers: int = 2", "argument workers is 2 in the stub, 1 in"),
        (r"workers: int = 1", "workers: int", "argument workers has a default in one"),
        (r"nbytes: int", "nbytes: str", "argument nbytes is str in the stub, int in"),
        (r"-> tuple\[str, str\]:", "-> str:", "choose: the stub returns str"),
        (r"is_shared\(tensor: torch.Tensor\)", "is_shared(tensor: int)", "tensor is int in"),
        (r"    @property\n    def loops", "    def loops", "a property in the extension"),
        (r"def grain\(self\) -> int", "def grain(self) -> str", "Plan.grain: str in the stub"),
        (r"class LocalRing:", "class Local:", "LocalRing: the stub has none"),
    ],
)
def test_tells_each_difference(old: str, new: str, said: str) -> None:
    changed, count = re.subn(old, new, STUB, count=1)
    assert count == 1, "the stub does not have this line any more: take another"
    assert any(said in difference for difference in differences(changed)), differences(changed)
