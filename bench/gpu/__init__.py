"""``make gpu``: proves and measures the CUDA kernels where there is a GPU. See bench/README.md."""
