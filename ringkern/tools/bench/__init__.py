"""``python -m ringkern bench``: ringkern beside Gloo, in the columns of nccl-tests."""
