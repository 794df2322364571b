"""What the table of docs/reference/torch_distributed.md is made of, and the ranks that fill it in.

    python -m tests.torch.support             how the table differs from what runs show now
    python -m tests.torch.support --update    writes it anew

`rows.py` is the list of rows; the modules that it imports hold the probes, which ranks run.
`names.py` is the list of torch's public names, each of which must have a row or a reason.
`nccl.py` is what PyTorch's documentation says of NCCL.
"""
