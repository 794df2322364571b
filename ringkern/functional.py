"""Out-of-place, differentiable collectives that ``torch.compile`` can trace.

Registers three operators with torch: ``ringkern::all_reduce`` and
``ringkern::all_reduce_residual_rms_norm`` return new tensors, and a compiled graph calls
``ringkern::all_reduce_`` for :func:`ringkern.ring_all_reduce`.
The compiler may remove a result that nothing uses, and with it the collective on that rank: use the
result on all ranks, or on none.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

from .arguments import way_asked
from .comm import Communicator, communicator_for
from .shards import Nodes, agree, finished, order_of

_OPS: dict[str, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}

# The gradient of these ops is the same all-reduce of the gradients.
_LINEAR = ("sum", "avg")


def all_reduce(
    tensor: torch.Tensor, op: str = "sum", group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Reduces ``tensor`` over all ranks into a new tensor. Differentiable.

    The gradient is that of the sum of all ranks' losses, as in ``torch.distributed.nn``: the
    all-reduce of the gradients with the same ``op``.

    Args:
        tensor: see :func:`ringkern.ring_all_reduce`; any shape.
        op: "sum", "avg", "prod", "min", "max", "band", "bor" or "bxor"; only "sum" and "avg" have
            gradients.
        group: the process group; ``None``: the default group.

    Returns:
        A contiguous tensor of the shape and dtype of ``tensor``.

    Raises:
        ValueError: unknown ``op``.
        NotImplementedError: backward through an ``op`` without a gradient. Also raises the errors
            of :func:`ringkern.ring_all_reduce`.
    """
    result: torch.Tensor = torch.ops.ringkern.all_reduce(tensor, op, _group_name(group))
    return result


def all_reduce_residual_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums ``x`` over all ranks, adds ``residual``, and divides each row by its root mean square.

    Computes the end of a transformer layer under tensor parallelism::

        total = all_reduce(x) + residual
        normalised = torch.nn.functional.rms_norm(total, weight.shape, weight, eps)

    The all-reduce uses ``deterministic="size_invariant"``, so that the bits of a row do not depend
    on the number of rows. ``total`` has the bits of the expression above. ``normalised`` is
    computed in float32 from ``total`` and rounded once. The squares of a row are added in the same
    order on every processor: square i to partial sum i % 32, then the upper half of the partial
    sums to the lower half, until one is left. On CUDA this is one kernel with the same bits; in a
    group of one rank or over several hosts, torch's operations follow the all-reduce there and add
    in their own order. There is no gradient.

    Args:
        x: this rank's tensor, of shape (..., n), of float32, float16 or bfloat16.
        residual: a tensor of the shape, dtype and device of ``x``, the same on all ranks.
        weight: a tensor of shape (n,), dtype and device of ``x``; multiplies each row.
        eps: added to the mean of the squares of a row; 0 or more.
        group: the process group; ``None``: the default group.

    Returns:
        ``normalised`` and ``total``, contiguous tensors of the shape and dtype of ``x``.

    Raises:
        TypeError: a dtype other than these three.
        ValueError: shapes, dtypes or devices that do not match, or a negative ``eps``.
        NotImplementedError: an input requires grad. Also raises the errors of
            :func:`ringkern.ring_all_reduce`.
    """
    if torch.compiler.is_compiling():
        op = torch.ops.ringkern.all_reduce_residual_rms_norm
        pair: tuple[torch.Tensor, torch.Tensor] = op(x, residual, weight, eps, _group_name(group))
        return pair
    _check_no_gradient(*_NORM, x, residual, weight)
    return _sum_norm(x, residual, weight, eps, group)


def world_invariant_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    shards: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Multiplies like :func:`torch.nn.functional.linear`, with inputs split over the ranks.

    The row-parallel layer of tensor parallelism, with bits that do not depend on the number of
    ranks: the input features are divided into ``shards`` equal ones, each is multiplied by itself,
    and the products are added as by :class:`ringkern.ShardSum`. There is no gradient.

    A whole model has the same bits if the layers before this one are computed by shard, too: a
    product of n columns may add in another order than one of n / 2.

    Args:
        x: this rank's features, those of ``ShardSum(shards, group).shards``: of shape (..., n).
        weight: this rank's columns of the weight, of shape (out, n).
        bias: of shape (out,), the same on all ranks, or ``None``; added to the sum.
        shards: how many shards the features of all ranks are divided into; at least as many as
            ranks.
        group: the process group; ``None``: the default group.

    Returns:
        A tensor of shape (..., out) and the dtype of ``x``, or that of the autocast, bit-identical
        on all ranks.

    Raises:
        ValueError: this rank's shards do not divide its features, ``shards`` is out of range, or
            ``x`` and ``weight`` do not match.
        NotImplementedError: an input requires grad.
        CollectiveMismatchError: ranks gave different ``shards``, in the first call with this
            number. Also raises the errors of :func:`ringkern.ring_all_reduce`.
    """
    _check_no_gradient("world_invariant_linear", "functional.all_reduce", x, weight, bias)
    communicator = communicator_for(group)
    order = order_of(shards, communicator)
    n, mine = x.shape[-1], len(order.shards)
    if n % mine != 0 or weight.shape[-1] != n:
        raise ValueError(
            f"x has {n} features and weight {weight.shape[-1]}, for {mine} of {shards} shards: "
            "both must have the same, a multiple of this rank's shards"
        )
    if shards not in (agreed := _agreed.setdefault(communicator, set())):
        agree(shards, communicator)
        agreed.add(shards)
    nodes = Nodes(order)
    for at, (some, columns) in enumerate(
        zip(x.split(n // mine, dim=-1), weight.split(n // mine, dim=-1))
    ):
        # Contiguous: a product may add in another order if its operands have other strides.
        product = torch.nn.functional.linear(some.contiguous(), columns.contiguous())
        nodes.take(at, product)
    total = order.total(communicator, nodes.end(keep=False))
    result = finished(total, dist.ReduceOp.SUM, order, None, product.dtype).view(product.shape)
    return result if bias is None else result.add_(bias)


# The numbers of shards that the ranks of a communicator have compared.
_agreed: weakref.WeakKeyDictionary[Communicator, set[int]] = weakref.WeakKeyDictionary()


def _check_no_gradient(name: str, instead: str, *tensors: torch.Tensor | None) -> None:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise NotImplementedError(f"{name} has no gradient; use torch.no_grad(), or {instead}")


_NORM = "all_reduce_residual_rms_norm", "all_reduce and torch.nn.functional.rms_norm"


def _sum_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: dist.ProcessGroup | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    way = way_asked("auto", "auto", "size_invariant", "auto", x.device.type)
    c = communicator_for(group)._c
    return c.all_reduce_residual_rms_norm(x, residual, weight, eps, *way)


def all_reduce_in_graph(tensor: Any, op: Any, group: dist.ProcessGroup | None, *way: str) -> bool:
    """Adds :func:`ringkern.ring_all_reduce` to the graph that torch.compile traces.

    Args:
        way: algorithm, protocol, deterministic, accumulate.

    Returns:
        False if the graph cannot hold this call.
    """
    # An op with a factor has another type, which a graph cannot compare.
    simple = type(op) is dist.ReduceOp.RedOpType
    # Compares the identity first: Dynamo of torch 2.11 cannot compare two ops.
    names = [name for name, value in _OPS.items() if op is value] if simple else []
    if simple and not names:
        names = [name for name, value in _OPS.items() if op == value]
    fits = isinstance(tensor, torch.Tensor) and (
        group is None or isinstance(group, dist.ProcessGroup)
    )
    if not names or not fits:
        return False
    torch.ops.ringkern.all_reduce_(tensor, names[0], _group_name(group), *way)
    return True


def _op_value(name: str) -> dist.ReduceOp.RedOpType:
    if name not in _OPS:
        raise ValueError(f"unknown op {name!r}; choose one of {', '.join(_OPS)}")
    return _OPS[name]


def _group_name(group: dist.ProcessGroup | None) -> str:
    # A graph holds names, not groups; "" is the default group at the time of the call.
    return "" if group is None else group.group_name


def _group_of(name: str) -> dist.ProcessGroup | None:
    resolve: Any = dist.distributed_c10d._resolve_process_group
    return resolve(name) if name else None


_library = torch.library.Library("ringkern", "DEF")
_library.define(
    "all_reduce(Tensor x, str op, str group) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
_library.define(
    "all_reduce_(Tensor(a!) x, str op, str group, str algorithm, str protocol, "
    "str deterministic, str accumulate) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "all_reduce_residual_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str group) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _all_reduce(x: torch.Tensor, op: str, group: str) -> torch.Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    communicator_for(_group_of(group)).all_reduce(result, _op_value(op))
    return result


def _all_reduce_(
    x: torch.Tensor,
    op: str,
    group: str,
    algorithm: str,
    protocol: str,
    deterministic: str,
    accumulate: str,
) -> None:
    communicator_for(_group_of(group)).all_reduce(
        x,
        _op_value(op),
        protocol=protocol,
        algorithm=algorithm,
        deterministic=deterministic,
        accumulate=accumulate,
    )


def _all_reduce_residual_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _sum_norm(x, residual, weight, eps, _group_of(group))


for _key in ("CPU", "CUDA"):
    _library.impl("all_reduce", _all_reduce, _key)
    _library.impl("all_reduce_", _all_reduce_, _key)
    _library.impl("all_reduce_residual_rms_norm", _all_reduce_residual_rms_norm, _key)


def _all_reduce_fake(x: torch.Tensor, op: str, group: str) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _all_reduce_fake_(x: torch.Tensor, op: str, group: str, *way: str) -> None:
    return None


def _all_reduce_residual_rms_norm_fake(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _all_reduce_fake(x, "sum", group), _all_reduce_fake(x, "sum", group)


torch.library.register_fake("ringkern::all_reduce", _all_reduce_fake, lib=_library)
torch.library.register_fake("ringkern::all_reduce_", _all_reduce_fake_, lib=_library)
torch.library.register_fake(
    "ringkern::all_reduce_residual_rms_norm", _all_reduce_residual_rms_norm_fake, lib=_library
)


def _setup(ctx: Any, inputs: tuple[torch.Tensor, str, str], output: torch.Tensor) -> None:
    _, ctx.op, ctx.group = inputs


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    if ctx.op not in _LINEAR:
        raise NotImplementedError(
            f"all_reduce with op {ctx.op!r} has no gradient; {' and '.join(_LINEAR)} have"
        )
    return torch.ops.ringkern.all_reduce(grad.contiguous(), ctx.op, ctx.group), None, None


torch.library.register_autograd(
    "ringkern::all_reduce", _backward, setup_context=_setup, lib=_library
)


def _all_reduce_autograd(x: torch.Tensor, op: str, group: str, *way: str) -> None:
    if torch.is_grad_enabled() and x.requires_grad:
        raise RuntimeError(
            "ring_all_reduce changes a tensor that requires grad, and the gradient would be "
            "silently wrong; use ringkern.functional.all_reduce, or torch.no_grad()"
        )
    with torch._C._AutoDispatchBelowAutograd():
        torch.ops.ringkern.all_reduce_(x, op, group, *way)


_library.impl("all_reduce_", _all_reduce_autograd, "Autograd")


def _all_reduce_residual_rms_norm_autograd(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_no_gradient(*_NORM, x, residual, weight)
    with torch._C._AutoDispatchBelowAutograd():
        pair: tuple[torch.Tensor, torch.Tensor] = torch.ops.ringkern.all_reduce_residual_rms_norm(
            x, residual, weight, eps, group
        )
    return pair


_library.impl("all_reduce_residual_rms_norm", _all_reduce_residual_rms_norm_autograd, "Autograd")
