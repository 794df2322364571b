"""The GPUs of this machine, found without torch: a machine that has none must hear so at once."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NO_NVCC = "no nvcc in CUDACXX, CUDA_HOME, PATH or /usr/local/cuda/bin"

# Names in cuda.h.
_NO_DEVICE = 100
_ATTRIBUTES = {
    "multiprocessors": 16,
    "l2_bytes": 38,
    "capability_major": 75,
    "capability_minor": 76,
}


@dataclass(frozen=True)
class Found:
    """The GPUs, or the reason why there are none.

    Attributes:
        count: how many this process may use.
        reason: where there are none, why not.
        gpus: for each its name, memory and what else the results depend on.
        driver: the driver's version; cuda: the CUDA version that it serves, as "13.0".
    """

    count: int
    reason: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str = ""
    cuda: str = ""

    def describe(self) -> dict[str, Any]:
        """Describes what the results depend on, for their JSON."""
        torch = torch_version()
        return {
            "gpus": self.gpus,
            "driver": self.driver,
            "driver_cuda": self.cuda,
            "torch": torch[0] if torch else None,
            "torch_cuda": torch[1] if torch else None,
            "nvcc": nvcc_version(),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": f"{platform.system()} {platform.release()}",
        }


def find() -> Found:
    """The GPUs that the driver shows to this process."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        smi = " for this process, though there is nvidia-smi" if shutil.which("nvidia-smi") else ""
        return Found(0, f"no CUDA device found (no libcuda.so.1{smi})")
    status = cuda.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        what = "" if status in (0, _NO_DEVICE) else f" (the driver answers with error {status})"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        what += "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"
        return Found(0, f"no CUDA device found{what}")
    version = ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    served = f"{version.value // 1000}.{version.value % 1000 // 10}"
    gpus = [_describe(cuda, i) for i in range(count.value)]
    return Found(count.value, "", gpus, _driver_version(), served)


def _describe(cuda: ctypes.CDLL, index: int) -> dict[str, Any]:
    handle, value = ctypes.c_int(0), ctypes.c_int(0)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t(0)
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    described: dict[str, Any] = {"name": name.value.decode(), "memory_bytes": memory.value}
    for key, attribute in _ATTRIBUTES.items():
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        described[key] = value.value
    return described


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        text = ""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
    if found:
        return found[1]
    smi = shutil.which("nvidia-smi")
    asked = [smi or "", "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = _output(asked).split() if smi else []
    return lines[0] if lines else ""


def torch_version() -> tuple[str, str] | None:
    """The versions of this interpreter's torch and of its CUDA ("" for none), without importing."""
    for entry in sys.path:
        try:
            text = (Path(entry) / "torch" / "version.py").read_text()
        except OSError:
            continue
        version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
        if version:
            return version[1], cuda[1] if cuda else ""
    return None


def missing_torch() -> str:
    """Returns the fault of this interpreter's torch; "" if it is there and has CUDA."""
    torch = torch_version()
    choose = "choose another Python: make gpu PYTHON=.../bin/python3"
    if not torch:
        return f"there is a GPU, but {sys.executable} has no torch; {choose}"
    if not torch[1]:
        return f"there is a GPU, but torch {torch[0]} of {sys.executable} has no CUDA; {choose}"
    return ""


def nvcc_version() -> str:
    """Returns a text such as "13.0", or "" where there is no nvcc."""
    nvcc = find_nvcc()
    found = re.search(r"release (\d+\.\d+)", _output([nvcc, "--version"])) if nvcc else None
    return found[1] if found else ""


def find_nvcc() -> str:
    """The path of nvcc, looked for where CMake does; "" if there is none."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    places = [*(f"{home}/bin" for home in homes), os.environ.get("PATH", os.defpath)]
    places.append("/usr/local/cuda/bin")
    chosen = os.environ.get("CUDACXX")
    return chosen or shutil.which("nvcc", path=os.pathsep.join(places)) or ""


def architecture(machine: dict[str, Any]) -> str:
    """Returns the architecture to compile for, such as "90"."""
    gpu = machine["gpus"][0]
    return f"{gpu['capability_major']}{gpu['capability_minor']}"


def l2_bytes(machine: dict[str, Any]) -> int:
    """Describes the first GPU; in a rehearsal, some GPU."""
    found: int = machine["gpus"][0].get("l2_bytes", 64 << 20)
    return found


def stand_in(architecture: str) -> Found:
    """Stands in for a GPU where the parts compile for one, and run on the CPU."""
    if not re.fullmatch(r"\d{2,3}", architecture):
        raise ValueError(f"--arch {architecture}: give a number such as 90")
    gpu = {"name": "none: without a GPU"}
    gpu |= {"capability_major": architecture[:-1], "capability_minor": architecture[-1]}
    return Found(1, "", [gpu])


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
