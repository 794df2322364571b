"""Describes the machine that this runs on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from . import links, nvml, sysfs
from .graph import C2c, Gpu, Machine, NvLink

_NVIDIA = "0x10de"


def detect(
    sys_root: str | Path = "/sys",
    *,
    cpuinfo: str | Path = "/proc/cpuinfo",
    arch: str | None = None,
    pynvml: Any = None,
) -> Machine:
    """Returns this machine: its NUMA nodes, GPUs, and the links between them.

    Nothing has to be present: ``notes`` says what could not be found out. GPUs are those of the
    host, whatever ``CUDA_VISIBLE_DEVICES`` hides, and their NVLinks are found only with
    ``nvidia-ml-py``.

    Args:
        sys_root: the root of the kernel's description of devices.
        cpuinfo: the kernel's description of the cores.
        arch: of the CPU, as in ``platform.machine()``, the default.
        pynvml: a module to use in place of pynvml.
    """
    root = Path(sys_root)
    cpus, notes = sysfs.cpus(root, Path(cpuinfo), arch or platform.machine())
    tree = sysfs.PciTree(root, cpus)
    found = _ask_nvml(pynvml, tree)
    gpus = [Gpu(gpu.dev, tree.add(gpu.bus_id), gpu.cc, gpu.name, gpu.uuid) for gpu in found.gpus]
    nvlinks = [
        NvLink(position, target, target_class, lanes, links.nvlink_gb_s(gpu.cc))
        for position, gpu in enumerate(found.gpus)
        for (target, target_class), lanes in gpu.nvlinks.items()
    ]
    c2c = [C2c(at, *gpu.c2c) for at, gpu in enumerate(found.gpus) if gpu.c2c]
    nics = sysfs.nics(root, tree)
    return Machine(
        name=platform.node(),
        cpus=tuple(tree.cpus),
        pci=tuple(tree.devices),
        gpus=tuple(gpus),
        nvlinks=tuple(nvlinks),
        c2c=tuple(c2c),
        nics=tuple(nics),
        p2p=tuple(found.p2p),
        notes=(*notes, *found.notes, *tree.notes),
    )


def _ask_nvml(pynvml: Any, tree: sysfs.PciTree) -> nvml.Found:
    """Finds GPUs by NVML; without it those in /sys, of which little is known."""
    by_pci = list(tree.of_class("0x0300", "0x0302", vendor=_NVIDIA))
    found = nvml.Found()
    try:
        found = nvml.query(pynvml or nvml.load())
    except ImportError:
        if by_pci:
            found.notes.append(
                "nvidia-ml-py is not installed, so that NVLinks, compute capabilities and who may "
                "reach whose memory are not known: pip install nvidia-ml-py"
            )
    if not found.gpus:
        found.gpus = [nvml.NvmlGpu(dev, bus) for dev, bus in enumerate(by_pci)]
    return found
