"""Small trees in the layout of Linux's /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GPU, BRIDGE, NIC = "0x030200", "0x060400", "0x020700"


class SysTree:
    """A root for ``detect`` with nothing in it at first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)

    def node(self, numa: int, cores: str, distances: str) -> None:
        self._write(f"devices/system/node/node{numa}", cpulist=cores, distance=distances)

    def cache(self, core: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
        self._write(
            f"devices/system/cpu/cpu{core}/cache/index{index}",
            level=level,
            type=kind,
            size=size,
            shared_cpu_list=shared,
        )

    def device(self, path: str, kind: str, **files: object) -> Path:
        """Adds one PCI device by its path below /sys/devices, such as pci0000:00/0000:00:01.0."""
        given = {"class": kind, "vendor": "0x10de" if kind == GPU else "0x1000", **files}
        speed = {"max_link_speed": "16.0 GT/s PCIe", "max_link_width": 16, "numa_node": 0}
        folder = self._write(f"devices/{path}", **{**speed, **given})
        link = self.root / "bus/pci/devices" / folder.name
        link.symlink_to(folder)
        return folder

    def below_switch(self, root: str, bus: int, kind: str = GPU, **files: object) -> str:
        """A device at a port of a switch; two of one root share the switch. Returns its bus id."""
        number = int(root.split(":")[1], 16)
        port = f"pci{root}/{root}:00.0"
        upstream = f"{port}/0000:{number + 1:02x}:00.0"
        downstream = f"{upstream}/0000:{number + 2:02x}:{bus & 0x1F:02x}.0"
        for path in (port, upstream):
            if not (self.root / "devices" / path).exists():
                self.device(path, BRIDGE, **{k: v for k, v in files.items() if k == "numa_node"})
        self.device(downstream, BRIDGE)
        return self.device(f"{downstream}/0000:{bus:02x}:00.0", kind, **files).name

    def infiniband(self, name: str, bus: str, rate: str) -> None:
        folder = self._write(f"class/infiniband/{name}/ports/1", rate=rate)
        (folder.parent.parent / "device").symlink_to(self.root / "bus/pci/devices" / bus)

    def network(self, name: str, bus: str, speed: str) -> None:
        folder = self._write(f"class/net/{name}", speed=speed)
        (folder / "device").symlink_to(self.root / "bus/pci/devices" / bus)

    def _write(self, path: str, **files: object) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            if value is not None:
                (folder / name).write_text(f"{value}\n")
        return folder


def cpuinfo(path: Path, values: Mapping[str, object]) -> Path:
    """/proc/cpuinfo of two equal cores."""
    core = "".join(f"{key}\t: {value}\n" for key, value in values.items())
    path.write_text(f"processor\t: 0\n{core}\nprocessor\t: 1\n{core}")
    return path
