"""Runs a rank where ringkern is not installed: ``python .../ringkern/peers/alone.py ...``.

The package itself would import torch and the extension, which a peer's environment need not have,
and whose threads and memory would not be the peer's. So an empty module takes its place.
"""

if __name__ == "__main__":
    import sys

    sys.path.pop(0)  # this folder, whose modules could hide others of their names
    import types
    from pathlib import Path

    package = types.ModuleType("ringkern")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["ringkern"] = package
    from ringkern.peers.worker import main

    sys.exit(main(sys.argv[1:]))
