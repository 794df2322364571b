"""The tests that torch ships for backends of torch.distributed, run on ringkern's and on Gloo."""
