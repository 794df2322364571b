"""Bandwidths of links by their kind: the only table of them in the package.

All are the rates of a copy by a kernel in one direction, not the rates on the wire, as NVIDIA
publishes them in NCCL: ``src/graph/topo.h`` (NVLink and between CPUs) and ``src/graph/topo.cc``
(PCIe) of NCCL 2.30. Those between CPUs are for data between GPUs over both CPUs, which such a link
carries worse than the CPUs' own traffic (NVIDIA/nccl issue 1163). None was measured by ringkern.
"""

from __future__ import annotations

import re

# GB/s of one NVLink, in one direction, from this compute capability on (10 * major + minor).
NVLINK_GB_S = ((60, 18.0), (70, 20.0), (80, 20.0), (90, 20.6), (100, 40.1))
# For GPUs with fewer lanes per link than others of their generation.
NVLINK_GB_S_OF = {86: 12.0}
NVLINK_GB_S_UNKNOWN = 20.0

# Within one device, or one NUMA node: so high that the links decide.
LOCAL_GB_S = 5000.0

# GB/s of one lane of PCIe, in one direction, by GT/s: 3 of 4 of the rate on the wire.
PCIE_LANE_GB_S = {2.5: 0.1875, 5.0: 0.375, 8.0: 0.75, 16.0: 1.5, 32.0: 3.0, 64.0: 6.0}
PCIE_UNKNOWN_GT_S = 8.0
PCIE_UNKNOWN_WIDTH = 16

# GB/s between two NUMA nodes, in one direction. Intel's (family 6) by the first model for which it
# holds, AMD's by the family.
_INTEL = ((0, 6.0), (0x55, 10.0), (0x8F, 22.0), (0xCF, 40.0))
_INTEL_OF = {0xAD: 40.0, 0xAE: 40.0, 0xAF: 40.0}  # newer than their numbers say
# Includes the families as older versions of NCCL wrote them: with 0x80 or more added.
_AMD = {23: 16.0, 0x8F: 16.0, 25: 24.0, 0xAF: 24.0, 26: 32.0, 0xBF: 32.0}
_BY_ARCH = {"ppc64": 32.0, "arm64": 6.0}
_ZHAOXIN = ("CentaurHauls", "  Shanghai  ")
INTERCONNECT_UNKNOWN_GB_S = 6.0  # the least of them


def nvlink_gb_s(cc: int | None) -> float:
    """Returns the GB/s of one NVLink in one direction.

    Args:
        cc: the GPU's compute capability, such as 90; ``None``: unknown, counts as 80.
    """
    if cc is None:
        return NVLINK_GB_S_UNKNOWN
    found = [gb_s for since, gb_s in NVLINK_GB_S if cc >= since]
    return NVLINK_GB_S_OF.get(cc, found[-1] if found else NVLINK_GB_S_UNKNOWN)


def pcie_gt_s(speed: str) -> float | None:
    """Returns the number of ``"16.0 GT/s PCIe"``, as the kernel and NCCL write it; else ``None``.

    It accepts every speed of PCIe, and no other number.
    """
    found = re.match(r"\s*(\d{1,3}(?:\.\d{1,2})?)\s*GT/s", speed)
    return float(found[1]) if found and float(found[1]) in PCIE_LANE_GB_S else None


def pcie_gb_s(speed: str, width: int) -> float:
    """Returns the GB/s of a PCIe link in one direction.

    Unknown values (``speed`` is no speed, ``width`` is 0) count as generation 3 and 16 lanes,
    as in NCCL.
    """
    return PCIE_LANE_GB_S[pcie_gt_s(speed) or PCIE_UNKNOWN_GT_S] * (width or PCIE_UNKNOWN_WIDTH)


def interconnect_gb_s(arch: str, vendor: str, family: int, model: int) -> float | None:
    """Returns the GB/s between two NUMA nodes in one direction; ``None``: the CPU is not listed.

    Args:
        arch: as NCCL names it: x86_64, arm64 or ppc64.
        vendor: as in CPUID, such as GenuineIntel.
        family: CPUID's, with its extension.
        model: CPUID's, with its extension.
    """
    if arch in _BY_ARCH:
        return _BY_ARCH[arch]
    if vendor == "GenuineIntel":
        if family != 6:
            return _INTEL[0][1]
        return _INTEL_OF.get(model, [gb_s for since, gb_s in _INTEL if model >= since][-1])
    if vendor == "AuthenticAMD":
        return _AMD.get(family, _AMD[23])
    if vendor in _ZHAOXIN:
        return 9.0 if (family, model) == (7, 0x5B) else 6.0
    return None
