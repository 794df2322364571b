"""The package needs nothing that is not Python's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ringkern.choose.topology

# ringkern itself imports torch.
SCRIPT = """
import sys, types
package = types.ModuleType("ringkern")
package.__path__ = [sys.argv[1]]
sys.modules["ringkern"] = package
for name in ("torch", "numpy", "pynvml"):
    sys.modules[name] = None
from ringkern.choose import topology
print(topology.recorded("dgx-h100").fabric().kinds[0, 1])
topology.describe(topology.detect())
"""


def test_neither_torch_nor_numpy_nor_nvml_is_needed() -> None:
    root = Path(ringkern.choose.topology.__file__).parents[2]
    command = [sys.executable, "-c", SCRIPT, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("NVS\n", "", 0)
