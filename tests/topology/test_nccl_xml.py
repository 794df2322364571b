"""NCCL's description of a machine: real files, and unusual ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkern.choose.topology import from_xml, read
from ringkern.choose.topology import xml_tree as tree
from tests.topology.machines import GPU, SWITCH

# In the shape of NCCL 2.2x's dumps, with what this package leaves out.
DUMP = """
<!-- any comment -->
<system version="1">
  <cpu host_hash="0x16fe256e956b115c" numaid="1" affinity="0000,0fffff00,000fffff" arch="x86_64"
       vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:16:00.0" class="0x060400" vendor="0x1000" device="0xc030"
         subsystem_vendor="0x15d9" subsystem_device="0x1d25" link_speed="32.0 GT/s PCIe"
         link_width="16">
      <pcilink target="0000:27:00.0"/>
      <pci busid="0000:18:00.0" class="0x030200" vendor="0x10de" device="0x2335"
           link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="0" gdr="1" future="yes">
          <nvlink target="0000:07:00.0" count="10" tclass="0x068000"/>
          <nvlink target="0000:06:00.0" count="8" tclass="0x068000"/>
          <future a="1"><gpu dev="77"/></future>
          <c2c bw="44712" count="5"/>
        </gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="3" speed="400000" port="1" latency="0.000000"
               guid="0xa87cb10003e1a258" maxconn="131072" gdr="1"/>
          <net name="fused" dev="9" speed="400000" net="0"/>
          <net name="without a number"/>
          <gin dev="3"/>
        </nic>
      </pci>
    </pci>
    <pci busid="0000:0a:00.0" class="0x030200" link_speed="8 GT/s" link_width="8">
      <gpu dev="0" sm="90" rank="1" gdr="0"/>
    </pci>
    <nic><net name="eth0" dev="0" speed="-1" port="0" guid="0x0" gdr="0"/></nic>
  </cpu>
</system>
"""


def test_a_dump_is_read() -> None:
    machine = from_xml(DUMP)
    (cpu,) = machine.cpus
    assert (cpu.numa, cpu.host, cpu.family, cpu.model) == (1, "0x16fe256e956b115c", 6, 207)
    assert cpu.cores == (*range(20), *range(40, 60))
    assert (cpu.arch, cpu.vendor, cpu.interconnect_gb_s) == ("x86_64", "GenuineIntel", 40.0)
    assert [pci.bus_id for pci in machine.pci] == [
        "0000:16:00.0",
        "0000:18:00.0",
        "0000:19:00.0",
        "0000:0a:00.0",
    ]
    assert [pci.above for pci in machine.pci] == [None, 0, 0, None]
    assert [pci.gb_s for pci in machine.pci] == [48.0, 48.0, 48.0, 6.0]
    assert [(gpu.dev, gpu.cc, gpu.gdr) for gpu in machine.gpus] == [(0, 90, False), (1, 90, True)]
    assert [(n.gpu, n.target, n.lanes, n.gb_s, n.end) for n in machine.nvlinks] == [
        (1, "0000:07:00.0", 10, 20.6, "switch"),
        (1, "0000:06:00.0", 8, 20.6, "switch"),
    ]
    assert [(c.gpu, c.lanes, c.gb_s) for c in machine.c2c] == [(1, 5, 44.712)]
    assert [(n.name, n.dev, n.cpu, n.pci, n.gb_s) for n in machine.nics] == [
        ("eth0", 0, 0, None, 0.0),
        ("mlx5_0", 3, 0, 2, 50.0),
    ]
    assert [(n.port, n.guid, n.gdr) for n in machine.nics] == [
        (0, "0x0", False),
        (1, "0xa87cb10003e1a258", True),
    ]
    bridge = machine.pci[0]
    assert (bridge.cpu, bridge.pci_class, bridge.speed) == (0, "0x060400", "32.0 GT/s PCIe")
    assert (bridge.vendor, bridge.device) == ("0x1000", "0xc030")
    assert (bridge.subsystem_vendor, bridge.subsystem_device) == ("0x15d9", "0x1d25")
    assert machine.notes == ()


def test_a_file_without_gpu_elements_has_gpus_by_their_class() -> None:
    # Azure's file for ND A100 v4.
    pci = '<pci busid="{}" class="{}" link_speed="16 GT/s" link_width="16"{}>'
    machine = from_xml(
        '<system version="1"><cpu numaid="0" affinity="0000ffff,0000ffff" arch="x86_64" '
        'vendor="AuthenticAMD" familyid="23" modelid="49">'
        + pci.format("ffff:ff:01.0", "0x060400", "")
        + pci.format("0001:00:00.0", "0x030200", "/")
        + pci.format("0101:00:00.0", "0x020700", "/")
        + pci.format("0002:00:00.0", "0x030200", "/")
        + "</pci></cpu></system>"
    )
    assert [machine.bus_id_of(gpu) for gpu in (0, 1)] == ["0001:00:00.0", "0002:00:00.0"]
    assert [gpu.cc for gpu in machine.gpus] == [None, None]
    assert machine.fabric().kinds[0, 1] == "PIX"
    assert any("names no GPU" in note for note in machine.notes)


def test_missing_values_of_a_file_are_noted() -> None:
    # Amazon's file for p5, whose devices have no class, like dumps of virtual machines.
    machine = from_xml(
        '<system version="1"><cpu numaid="-1"><pci busid="0000:10:1c.0" link_speed="" '
        'link_width="0"><gpu dev="0" sm="80"/></pci></cpu></system>'
    )
    assert machine.pci[0].gb_s == 12.0  # NCCL's: generation 3 with 16 lanes
    assert any("0000:10:1c.0 is not known in full" in note for note in machine.notes)
    machine = from_xml(CPU.format('<pci busid="0000:10:1c.0" link_speed="32 GT/s PCIe"/>'))
    assert machine.gpus == ()
    assert any("nor which class its PCI devices are of" in note for note in machine.notes)


@pytest.mark.parametrize(("other", "expected"), [("0000:02:00.0", GPU), ("0000:c4:00.0", SWITCH)])
def test_an_nvlink_without_class_ends_at_a_gpu_that_is_there(other: str, expected: str) -> None:
    machine = from_xml(
        '<system version="1"><cpu numaid="0">'
        f'<pci busid="0000:01:00.0"><gpu dev="0"><nvlink target="{other}" count="2"/></gpu></pci>'
        '<pci busid="0000:02:00.0"><gpu dev="1"/></pci></cpu></system>'
    )
    assert machine.nvlinks[0].target_class == expected


def test_several_hosts_may_have_the_same_bus_ids() -> None:
    host = (
        '<cpu host_hash="{}" numaid="0" arch="arm64"><pci busid="0008:06:00.0"><gpu dev="0" '
        'sm="103"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu></pci></cpu>'
    )
    machine = from_xml(f'<system version="1">{host.format("0xa")}{host.format("0xb")}</system>')
    assert machine.find_gpu("0008:06:00.0", "0xb") == 1
    assert machine.fabric().kinds[0, 1] == "NVS"


CPU = '<system version="1"><cpu numaid="0">{}</cpu></system>'
PCI = CPU.format('\n<pci busid="0000:01:00.0">{}</pci>')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no XML: no element found"),
        ('<system version="1">\n<cpu>', "no XML: no element found: line 2"),
        ("<graphs version='1'/>", "line 1, <graphs> is the outermost element: <system> is"),
        ("<system/>", "line 1, <system> has no version: a whole number is expected"),
        ('<system version="2"/>', "line 1, <system> has version 2: 1 is expected"),
        ('<system version="1"/>', "line 1, <system> has no <cpu>: at least one is expected"),
        ('<system version="1"><cpu/></system>', "<cpu> has no numaid: a whole number"),
        ('<system version="1"><cpu numaid="-2"/></system>', "numaid='-2': -1 to 65536 is expected"),
        (
            '<system version="1"><cpu numaid="0" affinity="fffffffff"/></system>',
            "groups of up to 8",
        ),
        ('<system version="1"><cpu numaid="0"/>\n<cpu numaid="0"/></system>', "line 2, <cpu> with"),
        (CPU.format("<pci/>"), "<pci> has no busid: a PCI bus id is expected"),
        (CPU.format('<pci busid="1"/>'), "<pci>: '1' is no PCI bus id: it has to look like"),
        (CPU.format('<pci busid="0000:01:00.0" link_width="65"/>'), "0 to 64 is expected"),
        (PCI.format('<pci busid="0000:01:00.0"/>'), "0000:01:00.0 occurs twice on one host"),
        (PCI.format('<gpu dev="0" sm="new"/>'), "<gpu> has sm='new'"),
        (PCI.format('<gpu dev="0"><nvlink target="0000:1:0.0"/></gpu>'), "<nvlink> has no count"),
        (PCI.format('<gpu dev="0"><c2c count="1"/></gpu>'), "<c2c> has no bw"),
    ],
)
def test_bad_files_are_refused_by_line_and_element(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "machine.xml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"machine\.xml: ") as caught:
        read(path)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "doctype",
    [
        '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE s SYSTEM "http://localhost/s.dtd">',
    ],
)
def test_a_doctype_is_refused(doctype: str) -> None:
    with pytest.raises(ValueError, match="line 2: a DOCTYPE is not accepted: remove it"):
        from_xml(f'\n{doctype}<system version="1" name="&b;"/>')


def test_only_utf_8_is_read() -> None:
    text = '<?xml version="1.0" encoding="utf-16"?><system version="1"><cpu numaid="0"/></system>'
    assert from_xml(text.encode()).cpus[0].numa == 0
    with pytest.raises(ValueError, match="no XML in UTF-8"):
        from_xml(text.encode("utf-16"))


def test_more_than_any_machine_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="nested deeper than the 64 levels"):
        from_xml("<a>" * 65 + "</a>" * 65)
    with pytest.raises(ValueError, match="more than the 20000 elements"):
        from_xml("<a>" + "<b/>" * tree.MAX_ELEMENTS + "</a>")
    monkeypatch.setattr(tree, "MAX_BYTES", 1 << 20)
    (tmp_path / "large.xml").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ValueError, match=r"large\.xml: .* more than the 1 MiB"):
        read(tmp_path / "large.xml")


@given(st.data())
def test_any_change_to_a_file_gives_a_machine_or_a_value_error(data: st.DataObject) -> None:
    text = bytearray(DUMP.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 30))
        text[at : at + length] = data.draw(st.binary(max_size=10))
    try:
        machine = from_xml(bytes(text))
    except ValueError:
        return
    assert len(machine.fabric().edges) < 100
