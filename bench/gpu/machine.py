"""Checks what all other parts need, without a build: each trouble is one sentence with a remedy."""

from __future__ import annotations

import socket
import subprocess
import sysconfig
from pathlib import Path

from bench.gpu import build, device
from bench.gpu.part import Context, Failed


def run(context: Context) -> None:
    troubles = [loopback(), python_headers(Path(sysconfig.get_path("include")))]
    tools = build.missing_tools()
    troubles.append(f"missing: {', '.join(tools)}; install them" if tools else "")
    if context.compiles:
        troubles += [compilers(context), driver(context.machine)]
    if not context.rehearsal:
        troubles.append(torch_sees_it())
    found = [trouble for trouble in troubles if trouble]
    context.note(troubles=found)
    if found:
        raise Failed("; ".join(found))


def loopback() -> str:
    """Connects two sockets of this machine, as ranks that meet over Gloo on ``lo`` do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5.0).close()
    except OSError as error:
        return (
            f"127.0.0.1 cannot be reached ({error}), where ranks meet; "
            "if lo is down: ip link set lo up"
        )
    return ""


def python_headers(folder: Path) -> str:
    if (folder / "Python.h").exists():
        return ""
    return (
        f"{folder} has no Python.h, which the extension is compiled with; "
        "install the headers of this Python (python3-dev)"
    )


def compilers(context: Context) -> str:
    """Compiles an empty kernel: nvcc refuses a g++ that is newer than it knows."""
    nvcc = device.find_nvcc()
    if not nvcc:
        return f"{device.NO_NVCC}; install the CUDA toolkit, or set CUDA_HOME"
    source = context.work / "empty.cu"
    source.write_text("__global__ void empty() {}\nint main() { empty<<<1, 1>>>(); }\n")
    architecture = device.architecture(context.machine)
    command = [nvcc, "-std=c++20", f"-arch=sm_{architecture}", str(source)]
    try:
        done = context.run([*command, "-o", str(source.with_suffix(""))], check=False)
    except subprocess.TimeoutExpired:
        return f"{nvcc} did not compile an empty kernel in time"
    return refusal(done.stdout) if done.returncode else ""


def refusal(output: str) -> str:
    """Why nvcc compiles nothing: from what it printed."""
    if "unsupported GNU version" in output:
        return (
            "g++ is too new for this nvcc; install an older one and set "
            "NVCC_PREPEND_FLAGS='-ccbin g++-13'"
        )
    if "Unsupported gpu architecture" in output:
        return "this nvcc is too old for this GPU; install a newer CUDA toolkit and set CUDA_HOME"
    lines = [line for line in output.splitlines() if "error" in line] or [output.strip()]
    return f"nvcc does not compile an empty kernel: {lines[0][:200]}"


def driver(machine: dict[str, object]) -> str:
    """A program of a newer major version of CUDA than the driver's does not run."""
    served, made = (str(machine.get(key) or "") for key in ("driver_cuda", "nvcc"))
    if served and made and int(made.split(".")[0]) > int(served.split(".")[0]):
        return f"nvcc {made} makes programs that this driver, for CUDA {served}, does not run"
    return ""


def torch_sees_it() -> str:
    import torch

    try:
        return "" if int(torch.ones(1, device="cuda").item()) == 1 else "torch computes nonsense"
    except Exception as error:
        return f"torch {torch.__version__} cannot use the GPU: {error}".splitlines()[0]
