"""Serves a small model with vLLM, for test_vllm_serves.py. Run by the Python that has vLLM.

    python engine.py FOLDER '{"tensor_parallel_size": 2}'

The model is a Llama with random weights, large enough that a wrong sum changes its tokens. Prints a
line "TOKENS" with the token ids of each prompt. With ``kill`` in the settings, a worker is killed
during a second generation, and the lines "KILLED" and "FAILED" have the times.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

HEADS = 16  # the most ranks


def make_model(folder: Path) -> str:
    """Returns the folder of the model, which is made unless it is there."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if not (folder / "config.json").exists():
        torch.manual_seed(1)
        config = LlamaConfig(
            hidden_size=32 * HEADS,
            intermediate_size=64 * HEADS,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            vocab_size=1024,
            max_position_embeddings=512,
            initializer_range=0.2,
        )
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return str(folder)


def workers() -> dict[int, psutil.Process]:
    """Returns vLLM's workers of this engine by rank."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        name = " ".join(process.cmdline())
        if "Worker_TP" in name:
            found[int(name.partition("Worker_TP")[2].split()[0])] = process
    return found


def main() -> None:
    """Serves the prompts with the settings of vLLM's ``LLM`` that the command line has."""
    from vllm import LLM, SamplingParams

    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    kill = settings.pop("kill", None)
    given: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "gpu_memory_utilization": 0.1,
        "max_model_len": 256,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "distributed_executor_backend": "mp",
        **settings,
    }
    llm = LLM(make_model(folder / "model"), **given)
    prompts = [{"prompt_token_ids": [3 + i * j % 1000 for j in range(20)]} for i in range(1, 4)]

    def generate(tokens: int) -> list[list[int]]:
        sampling = SamplingParams(
            max_tokens=tokens, temperature=1.0, seed=5, ignore_eos=True, detokenize=False
        )
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    print("TOKENS", json.dumps(generate(24)), flush=True)
    if kill is not None:
        threading.Timer(0.5, end, (workers()[kill].pid,)).start()
        try:
            generate(230)
        except Exception as error:  # vLLM's own, which names no rank
            print("FAILED", time.time(), type(error).__name__, flush=True)


def end(pid: int) -> None:
    """Kills a process, and prints when."""
    print("KILLED", pid, time.time(), flush=True)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
