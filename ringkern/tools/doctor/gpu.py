"""Checks the NVIDIA driver's report of itself and its GPUs against the needs of rings."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import machine
from .check import Finding, green, red, unchecked, yellow

_FIELDS = ("index", "compute_mode", "mig.mode.current")


def driver(timeout_s: float = 20.0) -> dict[str, Any]:
    """Returns ``version`` (empty: none is seen), ``gpus`` (from nvidia-smi), ``mps``."""
    found = re.search(r"Module.*?\s(\d+\.[\d.]+)", machine.text_of("/proc/driver/nvidia/version"))
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return {
        "version": found[1] if found else "",
        "gpus": _smi(timeout_s) if found else [],
        "mps": (Path(pipe) / "control").exists(),
    }


def _smi(timeout_s: float) -> list[dict[str, str]]:
    """Returns the rows of nvidia-smi; none if it is missing, or does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    return [dict(zip(_FIELDS, row)) for row in rows if len(row) == len(_FIELDS)]


def version_text(number: int) -> str:
    """Converts ``13000`` to ``"13.0"``, as CUDA numbers versions."""
    return f"{number // 1000}.{number % 1000 // 10}"


# ---- the lines of doctor ------------------------------------------------------------------------


def findings(loaded: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Runs all checks of this module.

    Args:
        loaded: the result of :func:`probe.ask`.
        seen: the result of :func:`driver`.
    """
    yield versions(loaded, seen)
    devices = loaded["cuda"].get("devices", ())
    if not devices:
        yield unchecked("GPU to GPU", "no GPU is visible to torch")
        return
    yield sharing(devices, seen)
    yield peers(devices, loaded["cuda"]["peers"])


def versions(loaded: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Any]) -> Finding:
    """Checks that driver, torch and kernels fit together, and that GPUs are visible."""
    name, torch, cuda = "driver and GPUs", loaded["torch"], loaded["cuda"]
    if "error" in torch:
        return unchecked(name, "torch does not load")
    if not seen["version"] and not cuda.get("devices"):
        return unchecked(name, "no NVIDIA driver is seen; rings run on the CPU")
    if torch["cuda"] is None:
        fix = "for rings on GPUs install a torch with CUDA: https://pytorch.org/get-started"
        return yellow(name, f"driver {seen['version']}, and a torch without CUDA", fix)
    if "error" in cuda:
        return red(name, cuda["error"], "see nvidia-smi; reboot, or install the driver again")
    if not cuda["devices"]:
        fix = "see nvidia-smi, CUDA_VISIBLE_DEVICES, and docker's --gpus all"
        text = f"driver {seen['version']}, and torch sees no GPU"
        return red(name, text, fix)
    text = f"{len(cuda['devices'])} x {cuda['devices'][0]['name']}, driver {seen['version']}"
    text += f", which has CUDA {version_text(cuda['driver'])}"
    runtime = loaded["ringkern"].get("build", {}).get("cuda_runtime") or 0
    # Within a major version, an older driver runs code of a newer toolkit, except PTX.
    if runtime // 1000 > cuda["driver"] // 1000:
        text += f"; ringkern was built with CUDA {version_text(runtime)}"
        return red(name, text, "install a newer driver, or build ringkern with an older toolkit")
    return green(name, text)


def sharing(devices: Sequence[Mapping[str, Any]], seen: Mapping[str, Any]) -> Finding:
    """Checks that several ranks, which are processes, may use a GPU: compute mode, MIG, MPS."""
    name = "ranks on one GPU"
    modes = [gpu["compute_mode"] for gpu in seen["gpus"]]
    if "Prohibited" in modes or ("Exclusive_Process" in modes and not seen["mps"]):
        mode = next(m for m in modes if m in ("Prohibited", "Exclusive_Process"))
        text = f"compute mode {mode}: a GPU takes one process"
        return yellow(name, text, "nvidia-smi --compute-mode=0, or start MPS, or one rank a GPU")
    if any("MIG" in device["name"] for device in devices) or "Enabled" in [
        gpu["mig.mode.current"] for gpu in seen["gpus"]
    ]:
        fix = "keep all ranks on one MIG instance, or nvidia-smi --multi-instance-gpu=0"
        text = "MIG is on: ranks on two instances exchange data in host memory"
        return yellow(name, text, fix)
    return green(name, "under MPS" if seen["mps"] else "they take turns")


def peers(devices: Sequence[Mapping[str, Any]], access: Sequence[Sequence[bool]]) -> Finding:
    """Checks peer access between each pair: without it ranks exchange data in host memory."""
    name, count = "GPU to GPU", len(devices)
    if count == 1:
        return unchecked(name, "there is one GPU")
    missing = [f"{a}->{b}" for a in range(count) for b in range(count) if not access[a][b]]
    if not missing:
        return green(name, f"each of {count} reaches all others")
    return yellow(
        name,
        f"no peer access: {', '.join(missing)}; ranks there exchange data in host memory",
        "see nvidia-smi topo -p2p rw; a virtual machine, an IOMMU or PCIe ACS may forbid it",
    )
