"""NVTX ranges from the view of a tool: a process loads a small library with its first range, and
the library records the begins and ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ringkern

TOOL = r"""
#include <nvtx3/nvToolsExt.h>
#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* out = nullptr;

int push(const char* name) {
  std::fprintf(out, "> %s\n", name);
  std::fflush(out);
  return 0;
}
int pop() {
  std::fprintf(out, "<\n");
  std::fflush(out);
  return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable core = nullptr;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size)) return 0;
  if (size <= NVTX_CBID_CORE_RangePop) return 0;
  out = std::fopen(std::getenv("RANGES"), "w");
  if (out == nullptr) return 0;
  *core[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *core[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
"""

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("ringkern", store=dist.HashStore(), rank=0, world_size=1)
x, y = torch.ones(4), torch.ones(4)
dist.all_reduce(x)
dist.all_reduce(x, async_op=True).wait()
dist.broadcast(x, 0)
dist.reduce(x, 0)
dist.all_gather([y], x)
dist.all_gather_into_tensor(y, x)
dist.reduce_scatter(y, [x])
dist.reduce_scatter_tensor(y, x)
dist.gather(x, [y])
dist.scatter(x, [y])
dist.all_to_all([y], [x])
dist.all_to_all_single(y, x)
dist.all_reduce(torch.eye(2).to_sparse())
dist.barrier()
try:
    dist.all_reduce(torch.ones(4, dtype=torch.uint16))
except TypeError:
    pass
dist.destroy_process_group()
"""
CALLED = (
    *("all_reduce", "all_reduce", "broadcast", "reduce", "all_gather", "all_gather"),
    *("reduce_scatter", "reduce_scatter", "gather", "scatter", "all_to_all", "all_to_all"),
    *("sparse_all_reduce", "barrier"),
)


def headers() -> Path | None:
    """Returns the NVTX headers of the CUDA toolkit, if there are any."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        homes.append(str(Path(nvcc).resolve().parents[1]))
    for home in [*homes, "/usr/local/cuda"]:
        if home and (Path(home) / "include/nvtx3/nvToolsExt.h").exists():
            return Path(home) / "include"
    return None


def test_a_range_for_each_call(tmp_path: Path) -> None:
    if not ringkern.build_info()["cuda"]:
        pytest.skip("ringkern is built without CUDA, and so without NVTX")
    include = headers()
    if include is None:
        pytest.skip("no NVTX headers (CUDA_HOME, nvcc, /usr/local/cuda) to build a tool with")
    source, tool, ranges = tmp_path / "tool.cpp", tmp_path / "tool.so", tmp_path / "ranges"
    source.write_text(TOOL)
    command = ["g++", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(tool)]
    subprocess.run(command, check=True, timeout=120)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        check=True,
        timeout=120,
        env={**os.environ, "NVTX_INJECTION64_PATH": str(tool), "RANGES": str(ranges)},
    )
    lines = ranges.read_text().splitlines()
    assert lines == [line for name in CALLED for line in (f"> ringkern:{name}", "<")]
