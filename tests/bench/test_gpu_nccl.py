"""NCCL as ``make gpu`` calls it, against a library that stands in for it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.gpu import nccl

FAKE_NCCL = """
#include <cstring>
struct Id { char internal[128]; };
static int groups, reduced;
extern "C" {
int ncclGetVersion(int* v) { *v = 23003; return 0; }
int ncclGetUniqueId(Id* id) { std::memset(id->internal, 'x', 128); return 0; }
int ncclCommInitRank(void** comm, int ranks, Id id, int rank) {
  for (char c : id.internal) if (c != 'x') return 4;
  *comm = reinterpret_cast<void*>(long(100 * ranks + rank));
  return 0;
}
int ncclGroupStart() { ++groups; return 0; }
int ncclGroupEnd() { return --groups ? 5 : 0; }
int ncclAllReduce(const void* in, void* out, unsigned long count, int type, int op, void* comm,
                  void* stream) {
  reduced = in == out && count == 1ul << 33 && type == 7 && op == 0 && long(comm) == 402 &&
            long(stream) == 7;
  return reduced ? 0 : 4;
}
const char* ncclGetErrorString(int status) { return status == 4 ? "bad argument" : "other"; }
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_nccl_is_called_as_its_header_says(tmp_path: Path) -> None:
    (tmp_path / "nccl.cpp").write_text(FAKE_NCCL)
    library = tmp_path / "libnccl.so.2"
    command = ["g++", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nccl.cpp")]
    subprocess.run(command, check=True, timeout=60)
    loaded = nccl.Library(str(library))
    assert loaded.version == (2, 30, 3) >= nccl.OLDEST
    identity, comm = nccl.UniqueId(), ctypes.c_void_p()
    loaded.call("ncclGetUniqueId", ctypes.byref(identity))
    loaded.call("ncclGroupStart")
    loaded.call("ncclCommInitRank", ctypes.byref(comm), 4, identity, 2)
    loaded.call("ncclAllReduce", 64, 64, 1 << 33, nccl.FLOAT32, nccl.SUM, comm, 7)
    loaded.call("ncclGroupEnd")
    with pytest.raises(nccl.NcclError, match="ncclAllReduce: bad argument"):
        loaded.call("ncclAllReduce", 64, 64, 1, 7, 0, comm, 7)


def test_nccls_numbers() -> None:
    assert nccl.decode_version(23003) == (2, 30, 3)
    assert nccl.decode_version(22809) == (2, 28, 9) < nccl.OLDEST
    assert nccl.decode_version(2804) < nccl.OLDEST  # 2.8.4
    assert ctypes.sizeof(nccl.UniqueId) == 128
    chosen = nccl.environment(8, "ll128", 132)
    assert chosen["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert (chosen["NCCL_MAX_CTAS"], chosen["NCCL_PROTO"]) == ("16", "LL128")
    assert "NCCL_PROTO" not in nccl.environment(2, "auto", 132)
