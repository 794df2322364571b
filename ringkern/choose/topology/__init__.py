"""The devices of a machine, and the links between its GPUs or CPUs.

>>> from ringkern.choose import topology
>>> machine = topology.recorded("dgx1-v100")
>>> machine.fabric([0, 3]).kinds[0, 1]
'NVL'

:func:`detect` describes this machine, :func:`read` a file that NCCL wrote on another one, and
:func:`recorded` one of the machines in the package. Nothing here needs torch, a GPU or a package
outside of Python's own; but GPUs are only found with ``nvidia-ml-py``.
"""

from __future__ import annotations

from importlib import resources

from .describe import describe
from .detect import detect
from .graph import C2c, Cache, Cpu, Gpu, Machine, Nic, NvLink, P2p, Pci, bus_id
from .nccl_xml import from_xml, read

__all__ = [
    "C2c",
    "Cache",
    "Cpu",
    "Gpu",
    "Machine",
    "Nic",
    "NvLink",
    "P2p",
    "Pci",
    "bus_id",
    "describe",
    "detect",
    "from_xml",
    "read",
    "recorded",
    "recorded_names",
]


def recorded_names() -> tuple[str, ...]:
    """Returns the names that :func:`recorded` takes, in alphabetical order."""
    files = (resources.files(__package__) / "machines").iterdir()
    return tuple(sorted(f.name[: -len(".xml")] for f in files if f.name.endswith(".xml")))


def recorded(name: str) -> Machine:
    """Returns a machine in ``ringkern/choose/topology/machines``, whose files name their sources.

    Raises:
        ValueError: there is none with that name; the text lists the names.
    """
    if name not in recorded_names():
        raise ValueError(f"{name!r} is no recorded machine: {', '.join(recorded_names())}")
    file = resources.files(__package__) / "machines" / f"{name}.xml"
    return from_xml(file.read_bytes())
