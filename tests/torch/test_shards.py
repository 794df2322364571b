"""``ringkern.ShardSum``: the sum of L shards has the same bits on any number of ranks, on one host
and on several, and they are those of the tree's definition.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import ringkern
from ringkern import functional
from ringkern import shards as implementation
from ringkern.backend import Options
from ringkern.comm import communicator_for
from ringkern.errors import CollectiveMismatchError, CommUsageError
from tests.ranks import Pool, RankError
from tests.reference import FLOATS, SMALL_FLOATS, bits_of
from tests.torch.rings import any_bits, normal, same

pytestmark = pytest.mark.quick

OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}
# The ranks that divide the shards: a letter for each rank's host.
PLACES = ("a", "aa", "ab", "aaa", "aba", "abb", "aaaa", "aabb", "abcd", "aaaaa")


def shard_of(dtype: torch.dtype, count: int, shard: int, kind: str, seed: int = 0) -> torch.Tensor:
    """Returns a shard's values: "bits" with NaN, infinities and subnormal numbers, "cancelling"
    numbers of which a sum keeps only the rounding errors.
    """
    if kind == "bits":
        return any_bits(dtype, (count,), shard, seed)
    if kind == "cancelling":
        base = normal(torch.float64, (count,), shard // 2, seed) * 100
        return (base if shard % 2 == 0 else -base * (1 + 1e-3)).to(dtype)
    return normal(dtype, (count,), shard, seed)


def expected(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """Returns the sum by the definition of the tree: from the top, the left operand has the largest
    power of two that is less than all.
    """
    dtype = tensors[0].dtype
    wider = torch.float64 if dtype == torch.float64 else torch.float32

    def total(first: int, count: int) -> torch.Tensor:
        if count == 1:
            return tensors[first].to(wider)
        left = 1 << (count - 1).bit_length() - 1
        return total(first, left) + total(first + left, count - left)

    wide = total(0, len(tensors)).clone()
    if op == "avg":
        wide /= torch.full_like(wide, len(tensors))
    nan = wide.isnan()
    if dtype == torch.float8_e4m3fn:
        wide = wide.clamp(-448, 448)
    result = wide.to(dtype)
    bits_of(result)[nan] = torch.iinfo(bits_of(result).dtype).max if dtype.itemsize > 1 else 0x7F
    return result


def _sum_here(
    rank: int, size: int, shards: int, dtype: torch.dtype, count: int, kind: str, op: str
) -> None:
    sums = ringkern.ShardSum(shards)
    all_shards = [shard_of(dtype, count, shard, kind) for shard in range(shards)]
    result = expected(all_shards, op)
    for _ in range(2):  # a ShardSum is used again and again
        for shard in sums.shards:
            sums.add(all_shards[shard])
        assert same(sums.all_reduce(OPS[op]), result)
    out = torch.empty_like(result)
    for _ in range(2):
        for shard in sums.shards:
            sums.add(all_shards[shard])
        assert sums.all_reduce(OPS[op], out).data_ptr() == out.data_ptr()
        assert same(out, result)
        out.fill_(5)
    if count % size == 0:
        for shard in sums.shards:
            sums.add(all_shards[shard])
        n = count // size
        assert same(sums.reduce_scatter(OPS[op]), result[rank * n : (rank + 1) * n])


@settings(max_examples=60)
@given(
    st.sampled_from(PLACES),
    st.integers(0, 20),
    st.sampled_from(FLOATS),
    st.one_of(st.integers(0, 100), st.sampled_from([3000, 9_000, 60_000])),
    st.sampled_from(["normal", "cancelling", "bits"]),
    st.sampled_from(sorted(OPS)),
)
def test_the_bits_are_those_of_the_tree(
    ranks: Pool, place: str, more: int, dtype: torch.dtype, count: int, kind: str, op: str
) -> None:
    ranks(place).run(_sum_here, len(place) + more, dtype, count, kind, op)


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_shards(ranks: Pool, size: int, dtype: torch.dtype) -> None:
    ranks(size).run(_sum_here, 8, dtype, 840 * 200, "cancelling", "avg")


@pytest.mark.parametrize("dtype", FLOATS)
def test_another_order_has_other_bits(dtype: torch.dtype) -> None:
    """The other tests would otherwise prove nothing."""
    tensors = [shard_of(dtype, 5000, shard, "normal") for shard in range(8)]
    total = tensors[0]
    for tensor in tensors[1:]:  # through a float: torch does not add 8-bit floats
        total = (
            total + tensor if dtype not in SMALL_FLOATS else total.float() + tensor.float()
        ).to(dtype)
    assert not same(total, expected(tensors, "sum"))


def _is_one_call(rank: int, size: int, shards: int) -> bool:
    ring = communicator_for(None)
    return implementation.order_of(shards, ring).is_even and ring.adds_by_tree


@pytest.mark.parametrize(
    ("place", "shards", "one_call"),
    [
        ("a", 8, True),
        ("aa", 2, True),
        ("aa", 8, True),
        ("ab", 8, False),
        ("aa", 6, False),  # 0 1, 2 and 3, 4 5
        ("aaa", 3, True),
        ("aaa", 6, True),
        ("aba", 3, False),  # rank 1 comes last
        ("aaa", 8, False),
        ("aaaa", 4, True),
        ("aaaa", 8, True),
        ("aaaaa", 5, True),
        ("aaaaa", 10, True),
        ("aaaa", 5, False),  # 2 and 3 come before 0 1
        ("aabb", 4, False),
    ],
)
def test_a_rank_with_one_node_sends_only_that(
    ranks: Pool, place: str, shards: int, one_call: bool
) -> None:
    assert set(ranks(place).run(_is_one_call, shards)) == {one_call}
    ranks(place).run(_sum_here, shards, torch.float32, 12_000, "cancelling", "sum")


def _one_after_the_other(rank: int, size: int) -> None:
    sums = ringkern.ShardSum(4)
    results = []
    for count, dtype in ((50, torch.float32), (50, torch.float64), (70, torch.float64)):
        for seed in (1, 2):
            tensors = [shard_of(dtype, count, shard, "normal", seed) for shard in range(4)]
            for shard in sums.shards:
                sums.add(tensors[shard])
            out = torch.empty_like(tensors[0]) if seed == 2 else None  # keeps memory for the next
            results.append((sums.all_reduce(out=out), expected(tensors, "sum")))
    for result, right in results:
        assert same(result, right)


def test_a_result_is_not_changed_by_the_next_sum(ranks: Pool) -> None:
    ranks(2).run(_one_after_the_other)


def _layouts(rank: int, size: int) -> None:
    sums = ringkern.ShardSum(4, dist.group.WORLD)
    tensors = [normal(torch.bfloat16, (6, 10), shard) for shard in range(4)]
    for shard in sums.shards:
        given = tensors[shard].t().contiguous().t().requires_grad_()
        sums.add(given)
        with torch.no_grad():
            given.zero_()  # it may change
    total = sums.all_reduce()
    assert not total.requires_grad
    assert same(total, expected([t.reshape(-1) for t in tensors], "sum").view(6, 10))
    with ringkern.Communicator() as other:
        over = ringkern.ShardSum(4, other)
        for shard in over.shards:
            over.add(tensors[shard])
        assert same(over.all_reduce(), total)


def test_any_layout_and_a_communicator(ranks: Pool) -> None:
    ranks(2).run(_layouts)


def _errors(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="2 shards are too few for 3 ranks"):
        ringkern.ShardSum(2)
    with pytest.raises(TypeError, match=r"shards is 4\.0; give the number of shards"):
        ringkern.ShardSum(4.0)  # type: ignore[arg-type]
    for shards in (0, 1025):
        with pytest.raises(ValueError, match="shards must be 1 to 1024"):
            ringkern.ShardSum(shards)
    with pytest.raises(CollectiveMismatchError, match="rank 0 adds 4 shards and rank 2 adds 6"):
        ringkern.ShardSum(4 if rank < 2 else 6)

    sums = ringkern.ShardSum(4)
    x = torch.ones(4)
    for wrong, told in ((torch.ones(3, dtype=torch.int32), "torch.int32"), ([1.0], "list")):
        with pytest.raises(TypeError, match=f"a shard is {told}; .* use ring_all_reduce"):
            sums.add(wrong)  # type: ignore[arg-type]
    with pytest.raises(CommUsageError, match=f"rank {rank} has added 0 of its [12] shards"):
        sums.all_reduce()
    sums.add(x)
    if rank == 0:
        for other in (torch.ones(5), x.double(), torch.ones(2, 2)):
            with pytest.raises(ValueError, match=r"shard 1 is torch.float.*; all must be alike"):
                sums.add(other)
        with pytest.raises(CommUsageError, match="rank 0 has added 1 of its 2 shards"):
            sums.reduce_scatter()
        sums.add(x)
    with pytest.raises(CommUsageError, match=f"rank {rank} has added all of its [12] shards"):
        sums.add(x)
    with pytest.raises(ValueError, match="a ShardSum has SUM and AVG"):
        sums.all_reduce(dist.ReduceOp.MAX)
    with pytest.raises(ValueError, match="4 elements, which 3 ranks cannot divide; pad it"):
        sums.reduce_scatter()
    for out in (torch.ones(5), x.double(), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match=r"out must be contiguous and, .* torch.float32\[4\]"):
            sums.all_reduce(out=out)
    # Nothing was lost.
    assert torch.equal(sums.all_reduce(), torch.full((4,), 4.0))


def test_wrong_use_is_refused(ranks: Pool) -> None:
    ranks(3).run(_errors)


def _unequal(rank: int, size: int) -> None:
    sums = ringkern.ShardSum(4)
    for _ in sums.shards:
        sums.add(torch.ones(10 + rank))
    sums.all_reduce()


def test_ranks_with_unequal_shards_all_fail(ranks: Pool) -> None:
    for size in (2, 4):
        outcomes = ranks(size).outcomes(_unequal)
        ranks(size).kill()
        assert [o.kind for o in outcomes if isinstance(o, RankError)] == [
            "CollectiveMismatchError"
        ] * size


def _in_pieces(rank: int, size: int) -> None:
    implementation._GATHERED_BYTES = 4096
    try:
        _sum_here(rank, size, 8, torch.float64, 3 * 1000, "cancelling", "sum")
    finally:
        implementation._GATHERED_BYTES = 1 << 20


def test_large_tensors_are_gathered_in_pieces(ranks: Pool) -> None:
    ranks(3).run(_in_pieces)


# ---- one shard a rank ---------------------------------------------------------------------------


def _in_place(
    rank: int, size: int, dtype: torch.dtype, count: int, kind: str, op: str, memory: str
) -> None:
    tensors = [shard_of(dtype, count, shard, kind) for shard in range(size)]
    x = (
        ringkern.empty(count, dtype=dtype)
        if memory == "shared"
        else torch.empty(count + 1, dtype=dtype)
    )
    x = x[1:] if memory == "shifted" else x[:count]
    x.copy_(tensors[rank])
    asked = {"deterministic": "world_invariant", "shards": size}
    if op == "premul":
        factor = dist._make_nccl_premul_sum(0.3)  # type: ignore[attr-defined]
        scaled = [(t.float() * torch.tensor(0.3)).to(dtype) for t in tensors]
        tensors = [(t * 0.3) for t in tensors] if dtype == torch.float64 else scaled
        ringkern.ring_all_reduce(x, factor, **asked)
    elif memory == "async":
        work = ringkern.ring_all_reduce(x, OPS[op], async_op=True, **asked)
        assert work is not None
        work.wait()
    else:
        ringkern.ring_all_reduce(x, OPS[op], **asked)
    assert same(x, expected(tensors, "sum" if op == "premul" else op))


@settings(max_examples=60)
@given(
    st.sampled_from(["aa", "aaa", "aaaa", "aaaaa", "aaaaaaa"]),
    st.sampled_from(FLOATS),
    st.one_of(st.integers(0, 100), st.sampled_from([3000, 60_000, 300_000])),
    st.sampled_from(["normal", "cancelling", "bits"]),
    st.sampled_from([*sorted(OPS), "premul"]),
    st.sampled_from(["plain", "shifted", "shared", "async"]),
)
def test_a_tensor_of_each_rank(
    ranks: Pool, place: str, dtype: torch.dtype, count: int, kind: str, op: str, memory: str
) -> None:
    ranks(place).run(_in_place, dtype, count, kind, op, memory)


def _other_ops(rank: int, size: int) -> None:
    asked = {"deterministic": "world_invariant", "shards": size}
    for op, dtype, value in (
        (dist.ReduceOp.MAX, torch.float32, size),
        (dist.ReduceOp.PRODUCT, torch.int64, 24),
        (dist.ReduceOp.SUM, torch.bool, 1),
    ):
        x = torch.full((9,), rank + 1).to(dtype)
        ringkern.ring_all_reduce(x, op, **asked)
        assert torch.equal(x, torch.full_like(x, value))
    for way in ({"algorithm": "one_shot"}, {"algorithm": "two_shot"}, {"protocol": "ll"}):
        tensors = [shard_of(torch.float32, 3000, shard, "cancelling") for shard in range(size)]
        x = tensors[rank].clone()
        ringkern.ring_all_reduce(x, **way, **asked)
        assert same(x, expected(tensors, "sum"))
    for way in ({"algorithm": "ring"}, {"protocol": "ll128"}):
        with pytest.raises(ValueError, match=r"deterministic='world_invariant' and .*: the order"):
            ringkern.ring_all_reduce(x, **way, **asked)


def test_other_ops_and_ways(ranks: Pool) -> None:
    ranks(4).run(_other_ops)


def _compiled(rank: int, size: int) -> None:
    tensors = [shard_of(torch.float32, 300, shard, "cancelling") for shard in range(size)]

    @torch.compile(backend="eager")
    def twice(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        ringkern.ring_all_reduce(x, deterministic="world_invariant", shards=size)
        return x

    assert same(twice(tensors[rank]), expected([t * 2 for t in tensors], "sum"))


def test_in_a_compiled_function(ranks: Pool) -> None:
    ranks(4).run(_compiled)


def _refused(rank: int, size: int, place: str, one_call: bool) -> None:
    x, asked = torch.ones(3), {"deterministic": "world_invariant"}
    with pytest.raises(ValueError, match="needs shards: how many tensors are added"):
        ringkern.ring_all_reduce(x, **asked)
    with pytest.raises(ValueError, match="shards is for deterministic='world_invariant'"):
        ringkern.ring_all_reduce(x, shards=size)
    with pytest.raises(ValueError, match=f"8 shards on {size} ranks: in this call each rank has"):
        ringkern.ring_all_reduce(x, shards=8, **asked)
    with pytest.raises(ValueError, match="has no PRODUCT of floats"):
        ringkern.ring_all_reduce(x, dist.ReduceOp.PRODUCT, shards=size, **asked)
    if not one_call:
        with pytest.raises(
            ValueError, match=r"in one call is for one host: use ringkern\.ShardSum"
        ):
            ringkern.ring_all_reduce(x, shards=size, **asked)
    assert torch.equal(x, torch.ones(3))
    assert communicator_for(None).adds_by_tree == one_call


@pytest.mark.parametrize(
    ("place", "one_call"), [("aaa", True), ("aaaa", True), ("aabb", False), ("ab", False)]
)
def test_a_wrong_call_is_refused(ranks: Pool, place: str, one_call: bool) -> None:
    ranks(place).run(_refused, place, one_call)


def _differ(rank: int, size: int) -> None:
    kept = (
        {"deterministic": "world_invariant", "shards": size} if rank else {"algorithm": "one_shot"}
    )
    ringkern.ring_all_reduce(torch.ones(3), **kept)


def test_ranks_that_do_not_agree_all_fail(ranks: Pool) -> None:
    outcomes = ranks(4).outcomes(_differ)
    ranks(4).kill()
    for outcome in outcomes:
        assert isinstance(outcome, RankError)
        assert outcome.kind == "CollectiveMismatchError"
        assert "deterministic" in str(outcome)


# ---- a layer of tensor parallelism --------------------------------------------------------------


def _linear(rank: int, size: int, shards: int, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    width = 24
    x = normal(dtype, (3, 5, shards * width), 0)
    weight, bias = normal(dtype, (7, shards * width), 1), normal(dtype, (7,), 2)
    products = [
        torch.nn.functional.linear(a.contiguous(), w.contiguous()).reshape(-1)
        for a, w in zip(x.split(width, -1), weight.split(width, -1))
    ]
    total = expected(products, "sum").view(3, 5, 7)
    mine = ringkern.ShardSum(shards).shards
    here = slice(mine[0] * width, (mine[-1] + 1) * width)
    for _ in range(2):
        result = functional.world_invariant_linear(
            x[..., here], weight[:, here].contiguous(), shards=shards
        )
        assert same(result, total)
    with_bias = functional.world_invariant_linear(
        x[..., here], weight[:, here], bias, shards=shards
    )
    assert same(with_bias, total + bias)


@pytest.mark.parametrize(("size", "shards"), [(1, 8), (2, 8), (3, 8), (4, 8), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_has_the_same_bits(ranks: Pool, size: int, shards: int, dtype: torch.dtype) -> None:
    ranks(size).run(_linear, shards, dtype)


def _refused_layers(rank: int, size: int) -> None:
    x, weight = torch.ones(2, 12), torch.ones(5, 12)
    for asked, other in ((16, weight), (4, torch.ones(5, 6))):
        with pytest.raises(ValueError, match="both must have the same, a multiple of this rank's"):
            functional.world_invariant_linear(x[:, :11] if asked == 16 else x, other, shards=asked)
    with pytest.raises(ValueError, match="1 shards are too few for 2 ranks"):
        functional.world_invariant_linear(x, weight, shards=1)
    with pytest.raises(NotImplementedError, match="world_invariant_linear has no gradient; use"):
        functional.world_invariant_linear(x, weight.requires_grad_(), shards=4)
    with torch.no_grad():
        functional.world_invariant_linear(x, weight, shards=4)
    with pytest.raises(CollectiveMismatchError, match="rank 0 adds 2 shards and rank 1 adds 6"):
        functional.world_invariant_linear(x, weight.detach(), shards=2 + 4 * rank)


def test_a_wrong_layer_is_refused(ranks: Pool) -> None:
    ranks(2).run(_refused_layers)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_ranks_of_one_process(size: int, dtype: torch.dtype) -> None:
    asked: dict[str, Any] = {"deterministic": "world_invariant", "shards": size}
    values = [shard_of(dtype, 3000, shard, "bits") for shard in range(size)]
    with ringkern.local.Ring(["cpu"] * size) as ring:
        for op, reduce in (("sum", ringkern.local.ring_all_reduce), ("avg", ring.all_reduce)):
            tensors = [value.clone() for value in values]
            reduce(tensors, OPS[op], **asked)
            for tensor in tensors:
                assert same(tensor, expected(values, op))
        for wrong, said in (
            ({**asked, "shards": None}, "needs shards"),
            ({**asked, "shards": 8}, f"with 8 shards on {size} ranks"),
            ({"shards": size}, "leave it out"),
        ):
            with pytest.raises(ValueError, match=said):
                ring.all_reduce(tensors, **wrong)
            with pytest.raises(ValueError, match=said):
                ringkern.local.ring_all_reduce(tensors, **wrong)
        with pytest.raises(ValueError, match="PRODUCT of floats"):
            ring.all_reduce(tensors, dist.ReduceOp.PRODUCT, **asked)


# ---- the option of a backend --------------------------------------------------------------------


def _group(size: int) -> dist.ProcessGroup:
    options = Options(deterministic="world_invariant")
    group = dist.new_group(list(range(size)), backend="ringkern", pg_options=options)
    assert group is not None
    return group


def _backend(rank: int, size: int, dtype: torch.dtype, op: str) -> None:
    group, n = _group(size), 700
    kinds = ("cancelling", "bits")
    all_ranks = [[shard_of(dtype, size * n, s, kind) for s in range(size)] for kind in kinds]
    for tensors in all_ranks:
        result = expected(tensors, op)
        mine = result[rank * n : (rank + 1) * n]
        x, out = tensors[rank].clone(), torch.empty(n, dtype=dtype)
        dist.reduce_scatter_tensor(out, x, OPS[op], group=group)
        assert same(out, mine)
        assert same(x, tensors[rank])
        out = x[rank * n : (rank + 1) * n]  # in place
        dist.reduce_scatter_tensor(out, x, OPS[op], group=group)
        assert same(out, mine)
        x = tensors[rank].clone()
        strided = torch.empty(n, 2, dtype=dtype)[:, 0]
        work = dist.reduce_scatter(strided, list(x.chunk(size)), OPS[op], group, async_op=True)
        work.wait()
        assert same(strided.contiguous(), mine)
        dist.reduce(x, 1, OPS[op], group)
        assert same(x, result if rank == 1 else tensors[rank])
        x = tensors[rank].clone()
        dist.all_reduce(x, OPS[op], group)
        assert same(x, result)
    parts = [tensors[rank][: 10 * r + 10].clone() for r in range(size)]  # a reduce each
    out = torch.empty(10 * rank + 10, dtype=dtype)
    dist.reduce_scatter(out, parts, OPS[op], group)
    assert same(out, expected([t[: 10 * rank + 10] for t in tensors], op))
    dist.destroy_process_group(group)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", sorted(OPS))
def test_all_reductions_of_a_group(ranks: Pool, size: int, dtype: torch.dtype, op: str) -> None:
    ranks(size).run(_backend, dtype, op)


def _other_kinds(rank: int, size: int) -> None:
    group = _group(size)
    pairs = [shard_of(torch.float32, 2 * 30 * size, s, "cancelling") for s in range(size)]
    out = torch.empty(30, dtype=torch.complex64)
    dist.reduce_scatter_tensor(out, torch.view_as_complex(pairs[rank].view(-1, 2)), group=group)
    mine = expected(pairs, "sum")[60 * rank : 60 * (rank + 1)]
    assert same(torch.view_as_real(out).view(-1), mine)
    whole = torch.arange(3 * size)
    numbers = torch.empty(3, dtype=torch.int64)
    dist.reduce_scatter_tensor(numbers, whole, group=group)
    assert torch.equal(numbers, size * whole[3 * rank : 3 * rank + 3])
    dist.all_reduce(numbers, dist.ReduceOp.PRODUCT, group)
    x = torch.ones(size)
    for call in (
        lambda: dist.all_reduce(x, dist.ReduceOp.PRODUCT, group),
        lambda: dist.reduce_scatter_tensor(x[:1].clone(), x, dist.ReduceOp.PRODUCT, group),
    ):
        with pytest.raises(ValueError, match="of this group, has no PRODUCT of floats; use a gro"):
            call()
    with pytest.raises(ValueError, match=r"tensor is sparse; .* adds dense tensors"):
        dist.all_reduce(x.to_sparse(), group=group)
    dist.barrier(group)
    dist.destroy_process_group(group)


def test_other_kinds_of_data_in_a_group(ranks: Pool) -> None:
    ranks(4).run(_other_kinds)


def _over_hosts(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"is for one host, and its ranks are on 2: .*ShardSum"):
        _group(size)


def test_a_group_over_hosts_is_refused(ranks: Pool) -> None:
    ranks("ab").run(_over_hosts)


def test_the_option_has_four_values() -> None:
    with pytest.raises(ValueError, match=r"deterministic is 'yes'; accepted: auto, .*, world_inv"):
        Options(deterministic="yes")
