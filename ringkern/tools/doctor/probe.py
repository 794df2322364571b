"""Asks torch, the extension and CUDA in a separate process.

Loading them may fail, never end, or end Python by a signal, for example for an instruction that the
CPU does not have. The process answers stage by stage, so that the earlier answers are known in any
case. It runs this file by its path, without the package: it may import nothing else at its top.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

STAGES = ("torch", "ringkern", "cuda")


# ---- here ---------------------------------------------------------------------------------------


def ask(timeout_s: float) -> dict[str, dict[str, Any]]:
    """Returns the answer of each of ``STAGES``; ``{"error": text}`` if it failed."""
    command = [sys.executable, __file__, json.dumps(sys.path)]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        # In a separate session: Ctrl-C is for this process, which ends the other one.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, start_new_session=True
        )
        try:
            how = _end_of(process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            how = f"did not end within {timeout_s:g} s"
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        errors.seek(0)
        last = [line.strip() for line in errors.read().splitlines() if line.strip()][-1:]
        found = _answers(said.read())
    for stage in STAGES:
        if stage not in found:  # the first of these is the one that failed
            found[stage] = {"error": ": ".join([f"loading {stage} {how}", *last])}
            how, last = f"was not tried: {stage} came first", []
    return found


def _answers(text: str) -> dict[str, dict[str, Any]]:
    found = {}
    for line in text.splitlines():
        try:
            stage, answer = json.loads(line)
        except ValueError:  # printed by a loaded module
            continue
        if stage in STAGES:
            found[stage] = answer
    return found


def _end_of(status: int) -> str:
    if status >= 0:
        return f"ended Python with status {status}"
    return f"ended Python by {signal.Signals(-status).name}"


# ---- there --------------------------------------------------------------------------------------


def _torch() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    return {
        "version": torch.__version__,
        "git": (torch.version.git_version or "")[:10],
        "debug": torch.version.debug,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "file": torch.__file__,
        "gloo": dist.is_available() and dist.is_gloo_available(),
    }


def _ringkern() -> dict[str, Any]:
    import torch.distributed as dist

    import ringkern
    from ringkern import config

    names = ("name", "default", "accepts", "meaning", "when")
    return {
        "build": ringkern.build_info(),
        "file": ringkern.__file__,
        "variables": [{n: getattr(each, n) for n in names} for each in config.variables()],
        "unknown_variables": config.unknown(os.environ),
        "engines": {
            device: {"name": name, "there": dist.is_backend_available(name)}
            for device, name in config.between_hosts().items()
        },
    }


def _cuda() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"driver": 0, "devices": [], "peers": []}
    if torch.version.cuda is None:
        return found
    ask_driver = getattr(torch._C, "_cuda_getDriverVersion", None)  # unknown to its stubs
    found["driver"] = ask_driver() if ask_driver else 0
    if not torch.cuda.is_available():
        return found
    count = torch.cuda.device_count()
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        found["devices"].append(
            {
                "name": properties.name,
                "capability": [properties.major, properties.minor],
                "memory": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        )
    # All pairs, in both directions: the driver may allow only one.
    found["peers"] = [
        [a == b or torch.cuda.can_device_access_peer(a, b) for b in range(count)]
        for a in range(count)
    ]
    return found


def _answer() -> None:
    sys.path[:] = json.loads(sys.argv[1])
    for stage, look in zip(STAGES, (_torch, _ringkern, _cuda)):
        try:
            answer = look()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps([stage, answer]), flush=True)


if __name__ == "__main__":
    _answer()
