"""How ``make gpu`` finds GPUs: by the driver, for which a library stands in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import device

ROOT = Path(__file__).resolve().parents[2]

FAKE_DRIVER = """
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuDeviceGet(int* d, int i) { *d = 10 + i; return 0; }
int cuDeviceGetName(char* name, int, int d) { name[0] = 'G'; name[1] = char('0' + d - 10); name[2] = 0; return 0; }
int cuDeviceTotalMem_v2(unsigned long* bytes, int) { *bytes = 5ul << 33; return 0; }
int cuDeviceGetAttribute(int* v, int which, int) { *v = which == 75 ? 9 : which == 76 ? 0 : which; return 0; }
}
"""  # noqa: E501


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_gpus_are_found_by_the_driver(tmp_path: Path) -> None:
    (tmp_path / "driver.cpp").write_text(FAKE_DRIVER)
    library = tmp_path / "libcuda.so.1"
    build = ["g++", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.cpp")]
    subprocess.run(build, check=True, timeout=60)
    program = (
        f"import json, sys; sys.path.insert(0, {str(ROOT)!r}); from bench.gpu import device; "
        "f = device.find(); print(json.dumps([f.count, f.gpus, f.cuda])); "
        "print(device.architecture({'gpus': f.gpus}))"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    found, architecture = done.stdout.splitlines()
    count, gpus, cuda = json.loads(found)
    assert (count, cuda, architecture) == (2, "13.0", "90")
    assert [gpu["name"] for gpu in gpus] == ["G0", "G1"]
    assert (gpus[0]["memory_bytes"], gpus[0]["multiprocessors"]) == (5 << 33, 16)
    if device.missing_torch():  # a torch without CUDA is no use beside a GPU
        command = [sys.executable, str(ROOT / "bench/gpu")]
        refused = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        assert refused.returncode == 2
        assert "has no CUDA" in refused.stderr
        assert "PYTHON=" in refused.stderr
