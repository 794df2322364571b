"""Checks that torch and the extension load and fit, and names the needs of a new build."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from ...startup import REBUILD
from . import gpu
from .check import Finding, green, red, unchecked, yellow

OLDEST_GCC = 11  # for C++20, as far as the sources use it
LOADED = Mapping[str, Mapping[str, Any]]


def findings(loaded: LOADED, driver: Mapping[str, Any]) -> Iterator[Finding]:
    """Runs all checks of this module."""
    yield torch(loaded)
    yield extension(loaded)
    yield kernels(loaded)
    yield compiler(loaded, driver)
    yield variables(loaded)
    yield between_hosts(loaded)


def torch(loaded: LOADED) -> Finding:
    """Checks that torch imports, and has the parts that ringkern uses."""
    found = loaded["torch"]
    if "error" in found:
        return red("torch", found["error"], "install torch again: https://pytorch.org/get-started")
    if not found["gloo"]:
        return yellow(
            "torch",
            f"{found['version']} without Gloo",
            "bench and tune need Gloo: install a build of torch that has it",
        )
    return green("torch", f"{found['version']}, {found['file']}")


def extension(loaded: LOADED) -> Finding:
    """Checks that the extension imports, and so was built against this torch."""
    found = loaded["ringkern"]
    if "error" not in found:
        info = found["build"]
        return green("extension", f"{info['version']}, built against torch {info['torch']}")
    if "error" in loaded["torch"]:
        return unchecked("extension", "torch does not load")
    text = str(found["error"])
    if variable := re.match(r"ValueError: (RINGKERN_\w+)=", text):
        return red("extension", text, f"give {variable[1]} a value that it can have, or unset it")
    if "this is the source" in text:
        return red("extension", text, "run Python from another directory, or: pip install -e .")
    if "SIGILL" in text:
        return red("extension", text, f"build it on a CPU like this one, in its clone: {REBUILD}")
    return red("extension", text, f"in its clone: {REBUILD}")


def kernels(loaded: LOADED) -> Finding:
    """Checks for CUDA kernels for the GPUs of this machine, if there are any."""
    name = "CUDA kernels"
    for stage in ("ringkern", "cuda"):
        if "error" in loaded[stage]:
            return unchecked(name, f"{stage} does not load")
    info, devices = loaded["ringkern"]["build"], loaded["cuda"]["devices"]
    if not devices:
        built = f"built for {info['cuda_archs']}" if info["cuda"] else "not built"
        return unchecked(name, f"{built}; torch sees no GPU")
    if not info["cuda"]:
        fix = f"put nvcc on the PATH and build again, in the clone: RINGKERN_CUDA=1 {REBUILD}"
        return red(name, "built without, and there are GPUs", fix)
    archs = str(info["cuda_archs"])
    missing = [d for d in devices if not _runs_on(archs, *d["capability"])]
    if missing:
        major, minor = missing[0]["capability"]
        fix = f'build again, in the clone: RINGKERN_CUDA_ARCHS="{major}{minor}" {REBUILD}'
        return red(name, f"for {archs}: none runs on {missing[0]['name']}", fix)
    return green(name, f"for {archs}, CUDA {gpu.version_text(info['cuda_runtime'])}")


def _runs_on(archs: str, major: int, minor: int) -> bool:
    """Returns whether machine code (same generation, minor version or newer) or PTX runs on it."""
    for kind, number in re.findall(r"(sm|compute)_(\d+)", archs):
        built = divmod(int(number), 10)
        if kind == "compute" and built <= (major, minor):
            return True
        if kind == "sm" and built[0] == major and built[1] <= minor:
            return True
    return False


def compiler(loaded: LOADED, driver: Mapping[str, Any]) -> Finding:
    """Returns what a new build would need, if one is advised."""
    name = "compiler"
    if not any("pip install" in check(loaded).fix for check in (extension, kernels)):
        return unchecked(name, "no new build is advised")
    version = _gcc_version()
    if version is None:
        return red(name, "no g++ on the PATH", "install it; on Debian and Ubuntu: apt install g++")
    if version < OLDEST_GCC:
        return red(name, f"g++ {version}: too old for C++20", f"install g++ {OLDEST_GCC} or newer")
    if driver["version"] and shutil.which("nvcc") is None:
        return yellow(
            name,
            f"g++ {version}, and no nvcc on the PATH",
            "install the CUDA toolkit, or put its bin/ on the PATH, for CUDA kernels",
        )
    return green(name, f"g++ {version}")


def _gcc_version() -> int | None:
    try:
        done = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, timeout=30)
        return int(done.stdout.split(".")[0])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def variables(loaded: LOADED) -> Finding:
    """Finds variables of the environment that nothing reads."""
    found = loaded["ringkern"]
    if "error" in found:
        return unchecked("variables", "the extension does not load")
    if not found["unknown_variables"]:
        return green("variables", "no unknown RINGKERN_ variable is set")
    unknown = found["unknown_variables"]
    words = [f"{n} (did you mean {near}?)" if near else n for n, near in unknown.items()]
    return yellow("variables", f"unknown: {', '.join(words)}", "correct or unset them")


def between_hosts(loaded: LOADED) -> Finding:
    """Checks that this torch has the engine between hosts."""
    name, found = "between hosts", loaded["ringkern"]
    if "error" in found:
        return unchecked(name, "the extension does not load")
    on = {"cpu": True, "cuda": bool(loaded["cuda"].get("devices"))}
    engines = {device: engine for device, engine in found["engines"].items() if on.get(device)}
    lacks = [f"{e['name']} for {d} tensors" for d, e in engines.items() if not e["there"]]
    if lacks:
        return yellow(
            name,
            f"this torch has no {' and no '.join(lacks)}",
            "for groups on several hosts: install a torch that has it, or choose another backend, "
            "as RINGKERN_INTER_HOST=gloo",
        )
    return green(name, ", ".join(f"{e['name']} for {d} tensors" for d, e in engines.items()))
