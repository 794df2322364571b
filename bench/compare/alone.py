"""Runs a rank where ringkern is not installed: ``python .../bench/compare/alone.py ...``.

The packages themselves would import torch and the extension, which a peer's environment need not
have, and whose threads and memory would not be the peer's. So empty modules take their place.
"""

if __name__ == "__main__":
    import sys

    sys.path.pop(0)  # this folder, whose modules could hide others of their names
    import types
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    for name in ("ringkern", "ringkern.tools", "bench", "bench.compare"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    from bench.compare.worker import main

    sys.exit(main(sys.argv[1:]))
