# examples/quickstart.py
import torch
import torch.distributed as dist

import ringkern

dist.init_process_group("ringkern")  # or "gloo", ...: ring_all_reduce works over any
x = torch.full((1000,), dist.get_rank() + 1.0)
ringkern.ring_all_reduce(x)  # in place, the sum of all ranks; dist.all_reduce(x) does the same
print(f"rank {dist.get_rank()}: {x[0]}")  # with 4 ranks: 1 + 2 + 3 + 4 = 10.0
dist.destroy_process_group()
