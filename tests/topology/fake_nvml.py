"""A module in pynvml's place: its functions and error classes, for GPUs that a test describes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    """Stands in for pynvml's class."""


class NVMLErrorNotSupported(NVMLError):
    """Stands in for pynvml's NVMLError_NotSupported, by its text."""

    def __str__(self) -> str:
        return "Not Supported"


@dataclass
class FakeGpu:
    """NVML's facts of a GPU. ``links``: state, end ("" is not told), its type (None: not told).

    ``missing``: names of functions that return an error for it.
    """

    bus: str
    cc: tuple[int, int] = (9, 0)
    name: str | bytes = "NVIDIA H100"
    links: tuple[tuple[int, str, int | None], ...] = ()
    c2c: tuple[tuple[int, int], ...] = ()  # status, MB/s
    missing: frozenset[str] = frozenset()


@dataclass
class FakeNvml:
    """The module. ``p2p`` and ``ancestors`` by pair of numbers; others answer with an error."""

    gpus: list[FakeGpu]
    p2p: dict[tuple[int, int], int] = field(default_factory=dict)
    ancestors: dict[tuple[int, int], int] = field(default_factory=dict)
    not_for_peers: frozenset[int] = frozenset()  # numbers of links
    starts: bool = True
    started: int = 0

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_P2P_CAPS_INDEX_READ = (0,)  # so it is, by a comma too many

    def __getattribute__(self, name: str) -> object:
        found = object.__getattribute__(self, name)
        if not name.startswith("nvmlDevice"):
            return found

        def call(*given: object) -> object:
            assert self.started == 1, f"{name} before nvmlInit"
            if given and isinstance(given[0], FakeGpu) and name in given[0].missing:
                raise NVMLErrorNotSupported
            return found(*given)

        return call

    def nvmlInit(self) -> None:
        if not self.starts:
            raise NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, dev: int) -> FakeGpu:
        if "nvmlDeviceGetHandleByIndex" in self.gpus[dev].missing:
            raise NVMLError("GPU is lost")
        return self.gpus[dev]

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(busId=f"0000{gpu.bus}".upper())

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str | bytes:
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return f"GPU-of-{gpu.bus}"

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.cc

    def _link(self, gpu: FakeGpu, link: int) -> tuple[int, str, int | None]:
        if link >= len(gpu.links):
            raise NVMLErrorNotSupported
        return gpu.links[link]

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> int:
        return self._link(gpu, link)[0]

    def nvmlDeviceGetNvLinkCapability(self, gpu: FakeGpu, link: int, capability: int) -> int:
        assert capability == 0
        return int(link not in self.not_for_peers)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: FakeGpu, link: int) -> int:
        kind = self._link(gpu, link)[2]
        if kind is None:
            raise NVMLErrorNotSupported
        return kind

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: FakeGpu, link: int) -> SimpleNamespace:
        end = self._link(gpu, link)[1]
        if not end:
            raise NVMLErrorNotSupported
        return SimpleNamespace(busId=f"0000{end}".upper())

    def nvmlDeviceGetFieldValues(
        self, gpu: FakeGpu, wanted: list[int | tuple[int, int]]
    ) -> list[SimpleNamespace]:
        def value(of: int | tuple[int, int]) -> int:
            if of == 170:
                return len(gpu.c2c)
            assert isinstance(of, tuple)
            return gpu.c2c[of[1]][of[0] - 171]

        return [
            SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=value(of))) for of in wanted
        ]

    def nvmlDeviceGetP2PStatus(self, one: FakeGpu, other: FakeGpu, index: int) -> int:
        assert index in (0, 1, 2)  # a c_uint, which takes no tuple
        pair = (self.gpus.index(one), self.gpus.index(other))
        if pair not in self.p2p:
            raise NVMLErrorNotSupported
        return self.p2p[pair]

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeGpu, other: FakeGpu) -> int:
        pair = (self.gpus.index(one), self.gpus.index(other))
        if pair not in self.ancestors:
            raise NVMLErrorNotSupported
        return self.ancestors[pair]
