"""The cut of an all-reduce over hosts as the model has it: that of csrc/core/pieces.h."""

import re
from pathlib import Path

import pytest

from ringkern.pieces import Crossing, K, M, rails_and_pieces

pytestmark = pytest.mark.quick

SOURCE = (Path(__file__).parent / "pieces_test.cpp").read_text()
ROW = re.compile(r"^ +\{([^{}]+), \{([^{}]+)\}, (\d+), (\d+)\},$", re.MULTILINE)


def number(text: str) -> int:
    """As 64 * M - 8."""
    product, _, less = text.partition(" - ")
    factors = [{"K": K, "M": M}.get(factor) or int(factor) for factor in product.split(" * ")]
    return factors[0] * (factors[1] if len(factors) > 1 else 1) - int(less or 0)


@pytest.mark.parametrize("row", ROW.findall(SOURCE), ids=" ".join)
def test_the_cut_is_that_of_calls(row: tuple[str, str, str, str]) -> None:
    nbytes, hosts, ranks, most_ranks = map(number, re.split(r", +", row[0]))
    rail_bytes, piece_bytes, tree = row[1].split(", ")
    crossing = Crossing(number(rail_bytes), number(piece_bytes), tree == "true")
    cut = rails_and_pieces(nbytes, hosts, ranks, crossing, most_ranks=most_ranks)
    assert cut == (int(row[2]), int(row[3]))


def test_all_rows_are_read() -> None:
    block = SOURCE.split("kRows[] = {")[1].split("};")[0]
    assert len(ROW.findall(SOURCE)) == block.count("\n") - 1 >= 20
