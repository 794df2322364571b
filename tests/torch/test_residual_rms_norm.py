"""functional.all_reduce_residual_rms_norm: the same bits for any number of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ringkern import arguments, config, functional
from tests.ranks import Pool
from tests.torch.rings import bytes_of, normal, same

pytestmark = pytest.mark.quick

fused = functional.all_reduce_residual_rms_norm
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-5


def norm_of(total: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns the norm by its documented definition, with operations of torch on single rows."""
    wide = total.float()
    squares = torch.nn.functional.pad(wide * wide, (0, -wide.size(-1) % 32))
    sums = torch.zeros(*wide.shape[:-1], 32)
    for i in range(0, squares.size(-1), 32):
        sums = sums + squares[..., i : i + 32]
    while sums.size(-1) > 1:
        lower, upper = sums.chunk(2, -1)
        sums = lower + upper
    # In float64, because torch's float32 square root is not always correctly rounded.
    scale = 1 / (sums / wide.size(-1) + eps).double().sqrt().float()
    return (wide * scale * weight.float()).to(total.dtype)


def sum_of(xs: list[torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
    total = xs[0].clone()
    for x in xs[1:]:
        total = total + x
    return total + residual


def _has_the_bits(rank: int, size: int) -> None:
    for dtype in DTYPES:
        for shape in ((1, 1), (3, 31), (33,), (2, 3, 64), (5, 1000), (70, 4096), (0, 7), (4, 0)):
            xs = [normal(dtype, shape, r) for r in range(size)]
            residual, weight = normal(dtype, shape, 0, 1), normal(dtype, shape[-1:], 0, 2)
            mine = xs[rank].clone()
            out, total = fused(mine, residual, weight, EPS)
            assert same(total, sum_of(xs, residual)), (dtype, shape)
            assert same(out, norm_of(total, weight, EPS)), (dtype, shape)
            assert same(mine, xs[rank])
            assert torch.allclose(
                out, torch.nn.functional.rms_norm(total, weight.shape, weight, EPS), rtol=1e-2
            )


@pytest.mark.parametrize("where", [1, 2, 3, "aab"])
def test_has_the_bits_of_its_definition(ranks: Pool, where: int | str) -> None:
    ranks(where).run(_has_the_bits)


def _rows_do_not_matter(rank: int, size: int) -> None:
    x = normal(torch.bfloat16, (64, 2048), rank)
    residual, weight = normal(torch.bfloat16, (64, 2048), 0, 1), normal(torch.bfloat16, (2048,), 0)
    out, total = fused(x, residual, weight)
    for rows in (slice(0, 1), slice(7, 9), slice(10, 64)):
        part_out, part_total = fused(x[rows], residual[rows], weight)
        assert same(part_out, out[rows])
        assert same(part_total, total[rows])


def test_the_number_of_rows_changes_no_bit(ranks: Pool) -> None:
    ranks(3).run(_rows_do_not_matter)


def _any_layout(rank: int, size: int) -> None:
    x = normal(torch.float32, (6, 40), rank)
    residual, weight = normal(torch.float32, (6, 40), 0, 1), normal(torch.float32, (40,), 0, 2)
    expected = fused(x, residual, weight)
    apart = torch.zeros(80)
    apart[::2] = weight
    given = fused(x.t().contiguous().t(), residual.t().contiguous().t(), apart[::2])
    for a, b in zip(given, expected):
        assert same(a, b)
        assert a.is_contiguous()
    # At odd addresses, and inside of no_grad.
    memory = torch.zeros(241)
    memory[1:] = x.view(-1)
    with torch.no_grad():
        for a, b in zip(fused(memory[1:].view(6, 40), residual, weight.requires_grad_()), expected):
            assert same(a, b)
            assert not a.requires_grad


def test_any_layout(ranks: Pool) -> None:
    ranks(2).run(_any_layout)


def _as_the_environment_says(rank: int, size: int) -> None:
    xs = [normal(torch.bfloat16, (3, 100), r) for r in range(size)]
    residual, weight = normal(torch.bfloat16, (3, 100), 0, 1), normal(torch.bfloat16, (100,), 0, 2)
    wide = torch.stack([x.float() for x in xs]).sum(0).bfloat16() + residual
    assert not same(wide, sum_of(xs, residual))
    with pytest.MonkeyPatch.context() as patch:
        asked = dataclasses.replace(config.config, accumulate="float32")
        patch.setattr(arguments, "config", asked)
        assert same(fused(xs[rank], residual, weight)[1], wide)


def test_sums_as_the_environment_says(ranks: Pool) -> None:
    ranks(3).run(_as_the_environment_says)


# ---- in a graph ---------------------------------------------------------------------------------


def _compiles(rank: int, size: int) -> None:
    x = normal(torch.float32, (4, 64), rank)
    residual, weight = normal(torch.float32, (4, 64), 0, 1), normal(torch.float32, (64,), 0, 2)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return fused(x * 2, residual, weight, EPS)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(x), step(x)):
        assert same(a, b)
    op = torch.ops.ringkern.all_reduce_residual_rms_norm.default
    for residual_ in (residual, residual.t().contiguous().t()):
        torch.library.opcheck(op, (x, residual_, weight, EPS, ""))
    with pytest.raises(Exception, match="has no gradient; use"):
        torch.compile(fused, fullgraph=True, backend="eager")(x, residual, weight.requires_grad_())


def test_in_a_graph(ranks: Pool) -> None:
    ranks(2).run(_compiles)


# ---- bad input: an error on the rank that asked for it, and nothing sent to the others ----------

x, w = torch.ones(2, 3), torch.ones(3)
CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "float64": (
        lambda: fused(x.double(), x.double(), w.double()),
        TypeError,
        "x is of dtype torch.float64, which has no norm; float32, float16 and bfloat16 have",
    ),
    "no dimension": (
        lambda: fused(x[0, 0], x[0, 0], w),
        ValueError,
        "x has no dimension; give a tensor whose last one is a row's",
    ),
    "residual of another shape": (
        lambda: fused(x, x[:1], w),
        ValueError,
        r"residual has shape \[1, 3\] and x \[2, 3\]; they must have the same shape",
    ),
    "residual of another dtype": (
        lambda: fused(x, x.half(), w),
        ValueError,
        "residual is torch.float16 and x is torch.float32; they must have the same dtype",
    ),
    "weight of another dtype": (
        lambda: fused(x, x, w.bfloat16()),
        ValueError,
        "weight is torch.bfloat16 and x is torch.float32; they must have the same dtype",
    ),
    "residual elsewhere": (
        lambda: fused(x, x.to("meta"), w),
        ValueError,
        "residual is on meta and x on cpu; they must be on the same device",
    ),
    "sparse weight": (
        lambda: fused(x, x, w.to_sparse()),
        ValueError,
        "weight is not a dense tensor",
    ),
    "weight of another size": (
        lambda: fused(x, x, torch.ones(2)),
        ValueError,
        r"weight has shape \[2\] and x \[2, 3\]; weight must have one dimension, of the size of",
    ),
    "weight of two dimensions": (
        lambda: fused(x, x, x),
        ValueError,
        r"weight has shape \[2, 3\] and x \[2, 3\]; weight must have one dimension",
    ),
    "negative eps": (lambda: fused(x, x, w, -1.0), ValueError, "eps is -1.0+; give a number"),
    "infinite eps": (lambda: fused(x, x, w, float("inf")), ValueError, "eps is inf; give a number"),
    "a gradient": (
        lambda: fused(x, x, torch.ones(3, requires_grad=True)),
        NotImplementedError,
        r"has no gradient; use torch.no_grad\(\), or all_reduce and torch.nn.functional.rms_norm",
    ),
    "device meta": (
        lambda: fused(x.to("meta"), x.to("meta"), w.to("meta")),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
}


def _bad_input(rank: int, size: int) -> None:
    for call, kind, text in CASES.values() if rank == 0 else ():
        with pytest.raises(kind, match=text):
            call()
    out, _ = fused(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3), 0.0)
    assert torch.equal(bytes_of(out), bytes_of(torch.ones(2, 3)))


def test_bad_input(ranks: Pool) -> None:
    ranks(2).run(_bad_input)
