"""Reads GPUs and their links from the driver by NVML (nvidia-ml-py, which is optional)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .graph import CLASS_CPU, CLASS_GPU, CLASS_NVSWITCH, P2p, bus_id

# NVML's numbers. Not pynvml's: its NVML_P2P_CAPS_INDEX_READ is a tuple in version 13.
_READ, _WRITE, _NVLINK = 0, 1, 2
_STATUS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")  # as nvidia-smi topo -p2p prints them
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_LINK_P2P = 0  # NVML_NVLINK_CAP_P2P_SUPPORTED
_ENDS = {0: f"{CLASS_GPU}00", 1: CLASS_CPU, 2: CLASS_NVSWITCH}
_C2C_COUNT, _C2C_STATUS, _C2C_MAX_BW = 170, 171, 172
_MAX_LINKS = 36

# The text that NCCL writes for an NVSwitch whose bus id the host does not see.
SWITCH_WITHOUT_ID = "fffffff:ff:ff.0"


@dataclass
class NvmlGpu:
    """A GPU, as described by NVML.

    Attributes:
        dev: NVML's number.
        nvlinks: lanes, by bus id and PCI class of the other end.
        c2c: lanes, and GB/s of each lane.
    """

    dev: int
    bus_id: str
    name: str = ""
    uuid: str = ""
    cc: int | None = None
    nvlinks: dict[tuple[str, str], int] = field(default_factory=dict)
    c2c: tuple[int, float] | None = None


@dataclass
class Found:
    """All GPUs, the access between them by position, and notes on facts that are unknown."""

    gpus: list[NvmlGpu] = field(default_factory=list)
    p2p: list[P2p] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load() -> Any:
    """Returns the module pynvml.

    Raises:
        ImportError: it is not installed.
    """
    import pynvml

    return pynvml


def query(pynvml: Any) -> Found:
    """Asks the driver.

    Args:
        pynvml: the module, or one with the same functions.
    """
    found = Found()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        found.notes.append(f"NVML does not start, so that GPUs are known by PCI alone: {error}")
        return found
    try:
        _Query(pynvml, found).run()
    finally:
        pynvml.nvmlShutdown()
    return found


class _Query:
    def __init__(self, pynvml: Any, found: Found) -> None:
        self.nvml = pynvml
        self.found = found

    def _ask(self, name: str, *given: Any, default: Any = None, what: str = "") -> Any:
        """Returns an NVML function's answer, or the default, with a note if ``what`` is given."""
        try:
            return getattr(self.nvml, name)(*given)
        except (self.nvml.NVMLError, AttributeError) as error:
            if what:
                self.found.notes.append(f"NVML does not tell {what}: {error}")
            return default

    def run(self) -> None:
        handles = []
        count = self._ask("nvmlDeviceGetCount", default=0, what="how many GPUs there are")
        for dev in range(count):
            what = f"of GPU {dev}, which is left out"
            handle = self._ask("nvmlDeviceGetHandleByIndex", dev, what=what)
            if handle is None:
                continue
            bus = self._bus_id(self._ask("nvmlDeviceGetPciInfo", handle, what=what))
            if bus:
                self.found.gpus.append(self._gpu(dev, bus, handle))
                handles.append(handle)
        for gpu, handle in zip(self.found.gpus, handles):
            self._nvlinks(gpu, handle)
            self._c2c(gpu, handle)
        for a, one in enumerate(handles):
            for b, other in enumerate(handles):
                if a != b:
                    self.found.p2p.append(self._pair(a, b, one, other))
        if any(not (p.read and p.write) for p in self.found.p2p):
            self.found.notes.append("NVML does not tell of all pairs who may reach whose memory")

    def _bus_id(self, info: Any) -> str:
        try:
            return bus_id(_text(info.busId)) if info is not None else ""
        except ValueError as error:
            self.found.notes.append(f"NVML gives a device without a bus id: {error}")
            return ""

    def _gpu(self, dev: int, bus: str, handle: Any) -> NvmlGpu:
        name = self._ask("nvmlDeviceGetName", handle, default="", what=f"the name of {bus}")
        uuid = self._ask("nvmlDeviceGetUUID", handle, default="", what=f"the UUID of {bus}")
        what = f"the compute capability of {bus}"
        cc = self._ask("nvmlDeviceGetCudaComputeCapability", handle, what=what)
        return NvmlGpu(dev, bus, _text(name), _text(uuid), 10 * cc[0] + cc[1] if cc else None)

    def _nvlinks(self, gpu: NvmlGpu, handle: Any) -> None:
        lanes: Counter[tuple[str, str]] = Counter()
        for link in range(getattr(self.nvml, "NVML_NVLINK_MAX_LINKS", _MAX_LINKS)):
            # A GPU without NVLink, or with fewer, answers with an error.
            if not self._ask("nvmlDeviceGetNvLinkState", handle, link, default=0):
                continue
            if not self._ask("nvmlDeviceGetNvLinkCapability", handle, link, _LINK_P2P, default=1):
                self.found.notes.append(f"NVLink {link} of {gpu.bus_id} is up, but not for peers")
                continue
            kind = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, default=255)
            end = self._bus_id(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
            if kind not in _ENDS and end:
                kind = 0 if end in {g.bus_id for g in self.found.gpus} else 2
            if kind == 2:
                end = end or SWITCH_WITHOUT_ID
            if not end:
                self.found.notes.append(f"NVLink {link} of {gpu.bus_id} is up; NVML hides its end")
                continue
            lanes[end, _ENDS[kind]] += 1
        gpu.nvlinks = dict(sorted(lanes.items()))

    def _c2c(self, gpu: NvmlGpu, handle: Any) -> None:
        if gpu.cc is None or gpu.cc < 90:
            return
        count = (self._fields(handle, _C2C_COUNT) or [0])[0]
        up = []
        for link in range(min(count, 64)):
            values = self._fields(handle, (_C2C_STATUS, link), (_C2C_MAX_BW, link))
            if values and values[0] == 1 and values[1] > 0:
                up.append(values[1])
        if up:
            gpu.c2c = (len(up), min(up) / 1000)

    def _fields(self, handle: Any, *wanted: Any) -> list[int]:
        """Returns values of NVML's fields; none if one of them is missing."""
        values = list(self._ask("nvmlDeviceGetFieldValues", handle, list(wanted), default=()))
        if any(value.nvmlReturn for value in values):
            return []
        return [int(value.value.uiVal) for value in values]

    def _pair(self, a: int, b: int, one: Any, other: Any) -> P2p:
        def status(index: int) -> str:
            number = self._ask("nvmlDeviceGetP2PStatus", one, other, index, default=-1)
            return _STATUS[number] if 0 <= number < len(_STATUS) - 1 else ""

        level = self._ask("nvmlDeviceGetTopologyCommonAncestor", one, other, default=-1)
        ancestor = _ANCESTORS.get(level, "")
        return P2p(a, b, status(_READ), status(_WRITE), status(_NVLINK), ancestor)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
