"""Probes that fill the table of docs/reference/torch_distributed.md, and the ranks that run them.

    python -m tests.torch.support             prints how the table differs from the current results
    python -m tests.torch.support --update    rewrites it

`rows.py` is the list of rows; the modules that it imports hold the probes, which ranks run.
`names.py` is the list of torch's public names, each of which must have a row or a reason. `nccl.py`
has the statements of PyTorch's documentation about NCCL.
"""
