"""Invalid exchanges between pairs and invalid messages: a part of test_backend_input."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.torch.bad_collectives import (
    Cases,
    ones,
    raw,
    scattered_from,
    sparse,
    to_root,
    wide,
)

PAIRS: Cases = {
    "gather to too few": (
        lambda r, k, g: dist.gather(ones(3), [ones(3)], r, group=g),
        ValueError,
        "gather_list has 1 tensors and must have 2, one for each rank of the group",
    ),
    "gather to another size": (
        lambda r, k, g: dist.gather(ones(3), [ones(3), ones(4)], r, group=g),
        ValueError,
        "gather_list[1] has 4 elements, shape [4], and must have 3, as tensor",
    ),
    "gather to a wide tensor": (
        lambda r, k, g: dist.gather(ones(3), [wide(3), ones(3)], r, group=g),
        ValueError,
        "gather_list[0] has elements that share memory",
    ),
    "gather to another dtype": (
        lambda r, k, g: g.gather([[ones(3).half(), ones(3)]], [ones(3)], to_root(r)),
        ValueError,
        "gather_list[0] is torch.float16 and tensor is torch.float32",
    ),
    "gather on another device": (
        lambda r, k, g: raw(g).gather(
            [[ones(3, device="meta")] * 2], [ones(3, device="meta")], to_root(r)
        ),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
    "gather to who is not the root": (
        lambda r, k, g: g.gather([[ones(3), ones(3)]], [ones(3)], to_root(1 - r)),
        ValueError,
        "gather_list is given on rank",
    ),
    "gather to nobody": (
        lambda r, k, g: g.gather([[ones(3), ones(3)]], [ones(3)], to_root(5)),
        ValueError,
        "the root is rank 5, which is not among the 2 ranks of the group",
    ),
    "gather of a sparse tensor": (
        lambda r, k, g: raw(g).gather([], [sparse()], to_root(1 - r)),
        ValueError,
        "tensor is not a dense tensor",
    ),
    "scatter of too many": (
        lambda r, k, g: dist.scatter(ones(3), [ones(3)] * 3, r, group=g),
        ValueError,
        "scatter_list has 3 tensors and must have 2, one for each rank of the group",
    ),
    "scatter of another size": (
        lambda r, k, g: dist.scatter(ones(3), [ones(4), ones(3)], r, group=g),
        ValueError,
        "scatter_list[0] has 4 elements, shape [4], and must have 3, as tensor",
    ),
    "scatter to a wide tensor": (
        lambda r, k, g: dist.scatter(wide(3), [ones(3), ones(3)], r, group=g),
        ValueError,
        "tensor has elements that share memory",
    ),
    "scatter from who is not the root": (
        lambda r, k, g: g.scatter([ones(3)], [[ones(3), ones(3)]], scattered_from(1 - r)),
        ValueError,
        "scatter_list is given on rank",
    ),
    "all_to_all of too few": (
        lambda r, k, g: dist.all_to_all([ones(3)] * 2, [ones(3)], group=g),
        ValueError,
        "input_tensor_list has 1 tensors and must have 2, one for each rank of the group",
    ),
    "all_to_all to too few": (
        lambda r, k, g: dist.all_to_all([ones(3)], [ones(3), ones(3)], group=g),
        ValueError,
        "output_tensor_list has 1 tensors and must have 2",
    ),
    "all_to_all to a wide tensor": (
        lambda r, k, g: dist.all_to_all([ones(3), wide(3)], [ones(3), ones(3)], group=g),
        ValueError,
        "output_tensor_list[1] has elements that share memory",
    ),
    "all_to_all of another size to itself": (
        lambda r, k, g: dist.all_to_all([ones(4), ones(4)], [ones(3), ones(3)], group=g),
        ValueError,
        "has 4 elements, shape [4], and must have 3, as input_tensor_list[",
    ),
    "all_to_all of another dtype": (
        lambda r, k, g: g.alltoall([ones(3), ones(3)], [ones(3), ones(3).half()]),
        ValueError,
        "input_tensor_list[1] is torch.float16 and input_tensor_list[0] is torch.float32",
    ),
    "all_to_all on another device": (
        lambda r, k, g: raw(g).alltoall([ones(3, device="meta")] * 2, [ones(3, device="meta")] * 2),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
    "all_to_all in place": (
        lambda r, k, g: dist.all_to_all(*[[ones(3), ones(3)]] * 2, group=g),
        ValueError,
        "overlap; give tensors of their own memory",
    ),
    "all_to_all_single of parts that are not equal": (
        lambda r, k, g: dist.all_to_all_single(ones(4), ones(5), group=g),
        ValueError,
        "input has 5 rows, which cannot be cut in 2 equal parts; give input_split_sizes",
    ),
    "all_to_all_single of a number": (
        lambda r, k, g: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0), group=g),
        ValueError,
        "output has 1 rows, which cannot be cut in 2 equal parts",
    ),
    "all_to_all_single of splits that are too few": (
        lambda r, k, g: dist.all_to_all_single(ones(4), ones(4), [4], [2, 2], group=g),
        ValueError,
        "output_split_sizes has 1 sizes and must have 2, one for each rank of the group",
    ),
    "all_to_all_single of splits with another sum": (
        lambda r, k, g: dist.all_to_all_single(ones(4), ones(4), [2, 2], [2, 3], group=g),
        ValueError,
        "the sum of input_split_sizes is 5 and input has 4 rows; they must be the same",
    ),
    "all_to_all_single of a negative split": (
        lambda r, k, g: dist.all_to_all_single(ones(4), ones(4), [5, -1], [2, 2], group=g),
        ValueError,
        "output_split_sizes[1] is -1; the size of a part is 0 or more",
    ),
    "all_to_all_single in place": (
        lambda r, k, g: dist.all_to_all_single(*[ones(4)] * 2, group=g),
        ValueError,
        "output and input overlap; give tensors of their own memory",
    ),
    "all_to_all_single of another dtype": (
        lambda r, k, g: g.alltoall_base(ones(4), ones(4).half(), [], []),
        ValueError,
        "output is torch.float32 and input is torch.float16",
    ),
    "send to itself": (
        lambda r, k, g: dist.isend(ones(3), r, g),
        ValueError,
        "this rank: a rank cannot send to itself",
    ),
    "receive from itself": (
        lambda r, k, g: dist.recv(ones(3), r, g),
        ValueError,
        "this rank: a rank cannot send to itself",
    ),
    "send to nobody": (
        lambda r, k, g: g.send([ones(3)], 2, 0),
        ValueError,
        "dst is rank 2, which is not among the 2 ranks of the group",
    ),
    "receive from nobody": (
        lambda r, k, g: g.recv([ones(3)], -1, 0),
        ValueError,
        "src is rank -1, which is not among the 2 ranks of the group",
    ),
    "send with a negative tag": (
        lambda r, k, g: dist.send(ones(3), 1 - r, g, tag=-1),
        ValueError,
        "tag is -1; a tag is 0 or more",
    ),
    "receive with a negative tag": (
        lambda r, k, g: dist.irecv(ones(3), 1 - r, g, tag=-1),
        ValueError,
        "tag is -1; a tag is 0 or more",
    ),
    "receive from anybody with a negative tag": (
        lambda r, k, g: dist.irecv(ones(3), None, g, tag=-1),
        ValueError,
        "tag is -1; a tag is 0 or more",
    ),
    "send of a sparse tensor": (
        lambda r, k, g: raw(g).send([sparse()], 1 - r, 0),
        ValueError,
        "tensor is not a dense tensor",
    ),
    "receive into a wide tensor": (
        lambda r, k, g: dist.irecv(wide(3), 1 - r, g),
        ValueError,
        "tensor has elements that share memory",
    ),
    "send on another device": (
        lambda r, k, g: raw(g).send([ones(3, device="meta")], 1 - r, 0),
        ValueError,
        "ringkern has no kernels for a tensor on device 'meta'",
    ),
    "receive from anybody on another device": (
        lambda r, k, g: raw(g).recv_anysource([ones(3, device="meta")], 0),
        ValueError,
        "tensor is on meta: from any source only CPU tensors are received; give src",
    ),
}
