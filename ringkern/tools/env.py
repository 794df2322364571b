"""``python -m ringkern env``: the facts for a bug report. Works if torch does not load."""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import startup
from . import options
from .doctor import gpu, machine, probe

DESCRIPTION = """\
Prints versions, the build of ringkern, the machine, its limits, and the relevant environment
variables. Works if torch or the extension do not load, and prints the reason."""

# No other variables are shown: they may hold secrets.
VARIABLES = (
    *("RINGKERN_*", "NCCL_*", "TORCH_NCCL_*", "GLOO_*", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_*"),
    *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "NVIDIA_VISIBLE_DEVICES"),
    *("TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_DISTRIBUTED_DEBUG", "PYTORCH_ALLOC_CONF"),
    *("PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "LD_PRELOAD", "RANK"),
    *("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.epilog = f"It prints only these environment variables: {', '.join(VARIABLES)}."
    parser.add_argument(
        "--all", action="store_true", help="print the report of torch.utils.collect_env, too"
    )
    options.add_timeout(parser, 180.0)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status is 0, even if something does not load."""
    output = options.Output(args.json)
    found = gather(os.environ, args.timeout / 3)
    if args.all or args.json:  # it takes a while
        found["collect_env"] = collect_env(args.timeout / 3)
    output.answer(text(found))
    if args.all:
        output.answer(f"\ntorch.utils.collect_env:\n{found['collect_env']}")
    output.json(found)
    return 0


def gather(environ: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    """Returns all facts except torch's own report."""
    shown = [n for n in environ if any(fnmatch.fnmatchcase(n, each) for each in VARIABLES)]
    return {
        "ringkern": {"version": startup.version(), "where": str(Path(__file__).parents[1])},
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "loaded": probe.ask(timeout_s),
        "driver": gpu.driver(),
        "machine": machine.facts(),
        "variables": {name: environ[name] for name in sorted(shown)},
    }


def collect_env(timeout_s: float) -> str:
    """Returns torch's own report, or the reason why there is none."""
    command = [sys.executable, "-m", "torch.utils.collect_env"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"none: {error}"
    return done.stdout.strip() or f"none: {done.stderr.strip()}"


# ---- as text ------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    """Returns the facts as lines of a report."""
    loaded, host = found["loaded"], found["machine"]
    lines = [
        ("ringkern", f"{found['ringkern']['version']}, {found['ringkern']['where']}"),
        ("build", _build(loaded["ringkern"])),
        ("python", f"{found['python']['version']}, {found['python']['executable']}"),
        ("torch", _torch(loaded["torch"])),
        ("gpus", _gpus(loaded["cuda"], found["driver"])),
        ("cpu", _cpu(host, loaded["ringkern"])),
        ("memory", _memory(host)),
        ("limits", ", ".join(f"{name} {_limit(name, n)}" for name, n in host["limits"].items())),
        ("system", f"{host['system']}, {host['kernel']}, container: {host['container']}"),
        ("host", host["host"]),
    ]
    lines += [("variable", f"{name}={value}") for name, value in found["variables"].items()]
    return "\n".join(f"{name + ':':<10}{value}" for name, value in lines)


def _build(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"DOES NOT LOAD: {found['error']}"
    info = found["build"]
    kernels = "no CUDA kernels"
    if info["cuda"]:
        runtime = gpu.version_text(info["cuda_runtime"])
        kernels = f"CUDA {runtime} kernels for {info['cuda_archs']}"
    return f"{info['compiler']}, against torch {info['torch']}, {kernels}"


def _torch(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return f"DOES NOT LOAD: {found['error']}"
    made_for = f"CUDA {found['cuda']}" if found["cuda"] else "no CUDA"
    gloo = "" if found["gloo"] else ", no Gloo"
    return f"{found['version']}, git {found['git'] or 'unknown'}, {made_for}{gloo}"


def _gpus(found: Mapping[str, Any], driver: Mapping[str, Any]) -> str:
    version = f"driver {driver['version']}" if driver["version"] else "no NVIDIA driver seen"
    if "error" in found:
        return f"{version}; not asked: {found['error']}"
    names = [f"{d['name']} sm_{''.join(map(str, d['capability']))}" for d in found["devices"]]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    api = f", CUDA {gpu.version_text(found['driver'])}" if found["driver"] else ""
    return f"{counted or 'none visible to torch'}; {version}{api}"


def _cpu(host: Mapping[str, Any], loaded: Mapping[str, Any]) -> str:
    isa = loaded["build"]["cpu_isa"] if "build" in loaded else "not known"
    quota = "" if host["cpu_quota"] is None else f", quota {host['cpu_quota']:g}"
    return f"{host['cpu']}, {host['cores']} cores usable{quota}, reductions: {isa}"


def _memory(host: Mapping[str, Any]) -> str:
    found, shm = host["memory"], host["dev_shm"]
    words = [f"{_gib(found[key])} {key}" for key in ("total", "available") if key in found]
    if "limit" in found:
        words.append(f"cgroup limit {_gib(found['limit'])}, {_gib(found['used'])} used")
    pages = host["huge_pages"]
    words.append(f"huge pages {pages['private']}, of shared memory {pages['shared']}")
    words.append(f"/dev/shm {_gib(shm['total'])}" if shm else "no /dev/shm")
    return ", ".join(words)


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.3g} GiB"


def _limit(name: str, number: int | None) -> str:
    if number is None:
        return "unlimited"
    return str(number) if name == "open files" else f"{number >> 10} KiB"
