"""``deterministic="size_invariant"``: the bits of an element depend only on the ranks' values of
it.

A set of elements is reduced, and then again in other calls: a part of them, padded, elsewhere in
the tensor, by other protocols and algorithms. Each element keeps its bits.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import ringkern
from ringkern import functional, local
from tests.ranks import Pool
from tests.reference import DIRECT
from tests.torch.rings import bytes_of, normal, ring, same

pytestmark = pytest.mark.quick

FIXED: dict[str, Any] = {"deterministic": "size_invariant"}
OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "premul_sum": dist._make_nccl_premul_sum(0.3),
}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIZE = 3  # with two ranks every order of addition has the same bits


def reduce_locally(inputs: list[torch.Tensor], op: str, **asked: Any) -> torch.Tensor:
    tensors = [x.clone() for x in inputs]
    local.ring_all_reduce(tensors, OPS[op], **asked)
    return tensors[0]


@settings(max_examples=60)
@given(
    st.data(),
    st.sampled_from(DTYPES),
    st.sampled_from(sorted(OPS)),
    st.integers(3, 5),
    st.integers(1, 40_000),
    st.sampled_from([("auto", "auto"), *DIRECT]),
    st.sampled_from(["dtype", "float32"]),
)
def test_no_disguise_changes_a_bit(
    data: st.DataObject,
    dtype: torch.dtype,
    op: str,
    size: int,
    count: int,
    way: tuple[str, str],
    accumulate: str,
) -> None:
    inputs = [normal(dtype, (count,), rank, count) for rank in range(size)]
    expected = reduce_locally(inputs, op, accumulate=accumulate, **FIXED)
    asked = {"algorithm": way[0], "protocol": way[1], "accumulate": accumulate, **FIXED}
    assert same(reduce_locally(inputs, op, **asked), expected)

    first = data.draw(st.integers(0, count - 1), label="first")
    last = data.draw(st.integers(first + 1, count), label="last")
    part = [x[first:last] for x in inputs]
    assert same(reduce_locally(part, op, **asked), expected[first:last])

    before = data.draw(st.integers(0, 5000), label="before")
    after = data.draw(st.integers(0, 5000), label="after")
    padded = [
        torch.cat([torch.full((before,), 1.0 + r), x, torch.full((after,), -0.5)]).to(dtype)
        for r, x in enumerate(inputs)
    ]
    assert same(reduce_locally(padded, op, **asked)[before : before + count], expected)

    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    assert same(reduce_locally([x[order] for x in inputs], op, **asked), expected[order])


def test_the_ring_does_change_bits() -> None:
    """The other tests would otherwise prove nothing."""
    inputs = [normal(torch.float32, (30_000,), rank) for rank in range(SIZE)]
    whole = reduce_locally(inputs, "sum", algorithm="ring")
    part = reduce_locally([x[7:] for x in inputs], "sum", algorithm="ring")
    assert not same(whole[7:], part)


def _from_every_call(rank: int, size: int) -> None:
    other = ringkern.Communicator()
    inputs = [normal(torch.bfloat16, (9000,), r) for r in range(size)]
    expected = reduce_locally(inputs, "sum", **FIXED)
    for n in (9000, 8999, 300, 25, 1):
        x, y, z = (inputs[rank][:n].clone() for _ in range(3))
        shared = ringkern.empty(n, dtype=x.dtype)
        shared.copy_(x)
        ringkern.ring_all_reduce(x, **FIXED)
        other.all_reduce(y, **FIXED)
        ringkern.ring_all_reduce(z, async_op=True, **FIXED).wait()
        ringkern.ring_all_reduce(shared, **FIXED)
        for result in (x, y, z, shared):
            assert same(result, expected[:n]), n
    x = inputs[rank].clone()
    torch.compile(lambda t: ringkern.ring_all_reduce(t, **FIXED), backend="eager")(x)
    assert same(x, expected)
    other.close()


def test_from_every_call(ranks: Pool) -> None:
    ranks(SIZE).run(_from_every_call)


def _refused(rank: int, size: int) -> None:
    x = torch.ones(10)
    for asked, told in (
        ({"algorithm": "ring"}, "algorithm='ring'"),
        ({"algorithm": "ring", "protocol": "ll"}, "algorithm='ring'"),
        ({"protocol": "ll128"}, "protocol='ll128'"),
    ):
        with pytest.raises(ValueError, match="depends on its place") as caught:
            ringkern.ring_all_reduce(x, **asked, **FIXED)
        assert f"deterministic='size_invariant' and {told}: " in str(caught.value)
        assert "leave algorithm and protocol to auto, or use one_shot or two_shot" in str(
            caught.value
        )
    with pytest.raises(ValueError, match="unknown deterministic 'yes'; choose one of auto, run_to"):
        ringkern.ring_all_reduce(x, deterministic="yes")
    with pytest.raises(ValueError, match="unknown accumulate 'float64'; choose one of auto, dtype"):
        ringkern.ring_all_reduce(x, accumulate="float64")
    # Nothing has been sent.
    ringkern.ring_all_reduce(x)
    assert torch.equal(x, torch.full((10,), float(size)))


def test_conflicting_deterministic_options_are_refused(ranks: Pool) -> None:
    ranks(2).run(_refused)


ENVIRONMENT = """
import torch, torch.distributed as dist, ringkern
from ringkern import functional, local
dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
def told(call):
    try:
        call()
    except ValueError as error:
        return str(error).split(":")[0]
    return "nothing"
x = torch.ones(3, dtype=torch.bfloat16)
print(told(lambda: dist.all_reduce(x)))
print(told(lambda: ringkern.ring_all_reduce(x)))
print(told(lambda: functional.all_reduce(x)))
print(told(lambda: local.ring_all_reduce([x, x.clone()])))
print(told(lambda: ringkern.ring_all_reduce(x, **{argument!r})))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("variable", "value", "other"),
    [
        ("DETERMINISTIC", "size_invariant", {"deterministic": "run_to_run"}),
        ("ACCUMULATE", "float32", {"accumulate": "dtype"}),
    ],
)
def test_the_environment_asks_for_every_call(variable: str, value: str, other: Any) -> None:
    """An explicit request for the ring, which cannot do this, is refused for every form of the
    call.
    """
    done = subprocess.run(
        [sys.executable, "-c", ENVIRONMENT.replace("{argument!r}", repr(other))],
        env={f"RINGKERN_{variable}": value, "RINGKERN_ALGORITHM": "ring", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = f"{variable.lower()}='{value}' and algorithm='ring'"
    assert done.stdout.splitlines() == [told] * 4 + ["nothing"], done.stderr


def _gradient(rank: int, size: int) -> None:
    x = normal(torch.bfloat16, (500,), rank).requires_grad_()
    functional.all_reduce(x, "sum", ring()).float().sum().backward()
    assert x.grad is not None
    assert torch.equal(bytes_of(x.grad), bytes_of(torch.full_like(x, size)))


def test_gradients_are_as_they_were(ranks: Pool) -> None:
    ranks(2).run(_gradient)
