"""Makes the tables of docs/reference/torch_distributed.md, and runs the ranks that fill them in.

    python -m tests.torch.support             shows how the page differs from a run
    python -m tests.torch.support --update    writes the page

`rows.py` is the list of rows; the modules that it imports hold the probes, which ranks run.
`names.py` is the list of torch's public names, each of which must have a row or a reason.
`nccl.py` holds the statements of PyTorch's documentation about NCCL.
"""
