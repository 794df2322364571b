"""Measures applications over ringkern and over what they use without it, in turns.

    python bench/applications.py train -n 2 --json train.json     # a step of DDP; Gloo
    python bench/applications.py decode -n 2 --json decode.json   # a token in plain torch; Gloo
    python bench/applications.py serve --json serve.json          # a token of vLLM; its kernel
    python bench/applications.py plot train.json serve.json --plot out.png

`train`: a transformer of 11 million parameters; each rank has two copies of it in DDP, one for each
backend, which take turns of a few steps. `decode`: a transformer split over the ranks, whose layers
end with `functional.all_reduce_residual_rms_norm`, or with an all-reduce, an addition and a norm.
`serve`, with the Python of `make serve`: one engine with two workers, which exchange their
communicator between two requests. All run alone, and beside one and eight programs that each keep a
core busy. A time is the median over the turns.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringkern
from ringkern.tools import figures
from ringkern.tools.bench.report import machine
from ringkern.tools.launch import launch

LIMIT_S = 1200


@contextlib.contextmanager
def beside(programs: int) -> Iterator[None]:
    """Runs this many programs that each keep a core busy, at most as long as this process lives."""
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    busy = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(programs)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def turns(names: Iterable[str], rounds: int) -> Iterator[tuple[str, bool]]:
    """Yields whose turn it is, and whether it counts; those of the first round do not."""
    names = list(names)
    for number in range(rounds + 1):
        for name in reversed(names) if number % 2 else names:
            yield name, number > 0


def save(file: str | None, rows: list[dict[str, Any]], **facts: Any) -> None:
    """Prints the rows, and writes them with the machine and the command."""
    for row in rows:
        medians = (f"{name} {statistics.median(ms):.2f} ms" for name, ms in row["ms"].items())
        print(row["what"], f"beside {row['busy']} busy programs:", ", ".join(medians), flush=True)
    if file is not None:
        command = shlex.join(["python", *sys.argv])
        facts |= {"date": date.today().isoformat(), "command": command, "machine": machine()}
        Path(file).write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


# ---- training -----------------------------------------------------------------------------------


def model_of(width: int = 384, layers: int = 6, tokens: int = 256) -> torch.nn.Module:
    """Returns a transformer of 11 million parameters that reads tokens and predicts the next."""
    layer = torch.nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(tokens, width),
        torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        torch.nn.Linear(width, tokens),
    )


class Trainer:
    """A copy of a model in DDP over one backend."""

    def __init__(self, model: torch.nn.Module, backend: str) -> None:
        self.group = dist.new_group(backend=backend)
        self.model = torch.nn.parallel.DistributedDataParallel(
            copy.deepcopy(model), process_group=self.group
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step_ms(self, steps: int, data: torch.Tensor) -> float:
        """Trains, and returns the time of a step on the slowest rank."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            logits = self.model(data[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), data[:, 1:])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        taken = torch.tensor([(time.perf_counter() - start) / steps * 1e3])
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return taken.item()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def train(programs: list[int], rounds: int, steps: int, file: str | None) -> int:
    """Runs in each rank; rank 0 starts the busy programs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    torch.manual_seed(1)
    model = model_of()
    trainers = {"ringkern": Trainer(model, "ringkern"), "Gloo": Trainer(model, "gloo")}
    data = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(rank))
    rows = []
    for busy in programs:
        ms: dict[str, list[float]] = {name: [] for name in trainers}
        with beside(busy if rank == 0 else 0):
            for name, counts in turns(trainers, rounds):
                taken = trainers[name].step_ms(steps, data)
                if counts:
                    ms[name].append(round(taken, 3))
        rows.append({"what": f"a step of DDP, {size} ranks", "busy": busy, "ms": ms})
    first, second = (trainer.weights() for trainer in trainers.values())
    assert torch.allclose(first, second, atol=1e-4), (first - second).abs().max()
    if rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        save(file, rows, parameters=parameters, steps=steps, threads=torch.get_num_threads())
    return 0


# ---- decoding -----------------------------------------------------------------------------------

EPS = 1e-5
End = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def separate(all_reduce: Callable[[torch.Tensor], object]) -> End:
    """Returns the end of a layer as three operations."""

    def end(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        all_reduce(x)
        total = x + residual
        return torch.nn.functional.rms_norm(total, weight.shape, weight, EPS), total

    return end


class Decoder:
    """A rank's part of the layers of a transformer in bfloat16, and its cache of 128 tokens.

    Args:
        width: of the residual stream.
        inner: of the feed-forward network, over all ranks.
        heads: of the attention, over all ranks.
    """

    def __init__(self, layers: int, width: int = 1024, inner: int = 2816, heads: int = 16) -> None:
        ranks = dist.get_world_size()
        self.heads, here, part = heads // ranks, width // ranks, inner // ranks
        made = torch.Generator().manual_seed(dist.get_rank())

        def random(*shape: int) -> torch.Tensor:
            return (torch.randn(*shape, generator=made) / shape[-1] ** 0.5).bfloat16()

        self.layers = [
            (random(3 * here, width), random(width, here), random(2 * part, width),
             random(width, part), *random(2, self.heads, 128, here // self.heads))
            for _ in range(layers)
        ]  # fmt: skip
        self.weight = torch.ones(width, dtype=torch.bfloat16)

    def token(self, x: torch.Tensor, end: End) -> torch.Tensor:
        """Returns what the last layer makes of one token, ``x`` of shape (1, width)."""
        normalised, residual = x, x
        for qkv, out, up, down, keys, values in self.layers:
            query, key, value = (normalised @ qkv.T).view(3, self.heads, 1, -1)
            key, value = torch.cat([keys, key], 1), torch.cat([values, value], 1)
            seen = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            normalised, residual = end(seen.view(1, -1) @ out.T, residual, self.weight)
            gate, inner = (normalised @ up.T).chunk(2, 1)
            inner = torch.nn.functional.silu(gate) * inner
            normalised, residual = end(inner @ down.T, residual, self.weight)
        return normalised


def decode(programs: list[int], rounds: int, tokens: int, layers: int, file: str | None) -> int:
    """Runs in each rank; rank 0 starts the busy programs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    model = Decoder(layers)
    ends: dict[str, End] = {
        "ringkern, fused": lambda *args: ringkern.functional.all_reduce_residual_rms_norm(
            *args, EPS
        ),
        "ringkern": separate(ringkern.ring_all_reduce),
        "Gloo": separate(dist.all_reduce),
    }
    x = torch.randn(1, 1024, generator=torch.Generator().manual_seed(7)).bfloat16()
    rows = []
    with torch.inference_mode():
        results = {name: model.token(x, end) for name, end in ends.items()}
        for busy in programs:
            ms: dict[str, list[float]] = {name: [] for name in ends}
            with beside(busy if rank == 0 else 0):
                for name, counts in turns(ends, rounds):
                    dist.barrier()
                    start = time.perf_counter()
                    for _ in range(tokens):
                        model.token(x, ends[name])
                    if counts:
                        ms[name].append(round((time.perf_counter() - start) / tokens * 1e3, 3))
            rows.append({"what": f"a token in plain torch, {size} ranks", "busy": busy, "ms": ms})
    for name, result in results.items():
        assert torch.allclose(result, results["Gloo"], atol=0.05, rtol=0.05), name
    if rank == 0:
        save(file, rows, tokens=tokens, layers=layers, threads=torch.get_num_threads())
    return 0


# ---- serving ------------------------------------------------------------------------------------


def switch(worker: Any, name: str) -> None:
    """Runs in a worker of vLLM, and makes its calls take one of two communicators."""
    from vllm.distributed.parallel_state import get_tp_group

    from ringkern.integrations.vllm import RingCommunicator

    group = get_tp_group()
    if not hasattr(worker, "communicators"):
        ring = RingCommunicator(
            group.cpu_group, group.device, group.device_group, group.unique_name
        )
        worker.communicators = {"vLLM": group.device_communicator, "ringkern": ring}
    group.device_communicator = worker.communicators[name]


def serve(programs: list[int], rounds: int, tokens: int, layers: int, file: str | None) -> int:
    """Serves a Llama of ``layers`` layers of width 1024 with weights that vLLM makes up."""
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # of `switch`
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM, SamplingParams

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            tensor_parallel_size=2,
            gpu_memory_utilization=0.2,
            kv_cache_memory_bytes=1 << 27,
            max_model_len=256,
            enable_prefix_caching=False,
            enforce_eager=True,
            dtype="bfloat16",
            distributed_executor_backend="mp",
        )
    prompt = {"prompt_token_ids": [*range(3, 131)]}

    def request(count: int) -> tuple[float, list[int]]:
        sampling = SamplingParams(
            max_tokens=count, temperature=0, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        (output,) = llm.generate([prompt], sampling, use_tqdm=False)
        return (time.perf_counter() - start) * 1e3, list(output.outputs[0].token_ids)

    rows, replies = [], set()
    for busy in programs:
        first: dict[str, list[float]] = {"ringkern": [], "vLLM": []}
        later: dict[str, list[float]] = {"ringkern": [], "vLLM": []}
        with beside(busy):
            for name, counts in turns(first, rounds):
                llm.collective_rpc(switch, args=(name,))
                one, _ = request(1)
                all_, reply = request(tokens)
                replies.add(tuple(reply))
                if counts:
                    first[name].append(round(one, 3))
                    later[name].append(round((all_ - one) / (tokens - 1), 3))
        rows.append({"what": "a prompt of 128 tokens, 2 workers", "busy": busy, "ms": first})
        rows.append({"what": "a token of vLLM, 2 workers", "busy": busy, "ms": later})
    assert len(replies) == 1, replies
    save(file, rows, model=config, tokens=tokens)
    return 0


# ---- the picture --------------------------------------------------------------------------------

COLOURS = {"ringkern": figures.BLUE, "ringkern, fused": figures.GREEN}


def plot(files: list[str], to: str) -> int:
    """Draws a panel for each application: the median of each contender, and its turns."""
    contents = [json.loads(Path(file).read_text()) for file in files]
    rows = [row for content in contents for row in content["rows"]]
    titles = list(dict.fromkeys(row["what"] for row in rows))
    figure, [panels] = figures.panels(1, len(titles), (3.6, 3.6))
    for panel, title in zip(panels, titles):
        of_title = [row for row in rows if row["what"] == title]
        for place, row in enumerate(of_title):
            width = 0.8 / len(row["ms"])
            for number, (name, ms) in enumerate(row["ms"].items()):
                colour = COLOURS.get(name, figures.GREY)
                at = place + width * (number + 0.5) - 0.4
                panel.bar(at, statistics.median(ms), 0.9 * width, color=colour, label=name)
                panel.plot([at] * len(ms), ms, "k.", markersize=3)
        panel.set_xticks(range(len(of_title)), [row["busy"] for row in of_title])
        panel.set(title=title, ylabel="ms", xlabel="busy programs beside", yscale="log")
        handles, names = panel.get_legend_handles_labels()
        entries = dict(zip(names, handles))
        panel.legend(entries.values(), entries, fontsize="small")
    origin = []
    for content in contents:
        one = content["machine"]
        where = f"{one['cpu']}, {one['cores']} cores, torch {one['torch']}"
        origin.append(f"{content['command']}: {where}, {content['date']}")
    figures.save(figure, Path(to), origin)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["train", "decode", "serve", "plot"])
    parser.add_argument("files", nargs="*", help="of --json, for the picture")
    parser.add_argument("-n", "--ranks", type=int, default=2, help="of train and decode")
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0, 1, 8], help="programs beside (default 0 1 8)"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="of a turn of the training")
    parser.add_argument("--tokens", type=int, default=32, help="of a reply, or a turn of decode")
    parser.add_argument("--layers", type=int, default=8, help="of the model of decode and serve")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    if args.what == "plot":
        return plot(args.files, args.plot)
    if args.what == "serve":
        return serve(args.busy, args.rounds, args.tokens, args.layers, args.json)
    if args.what == "decode":
        given = (args.busy, args.rounds, args.tokens, args.layers, args.json)
        return launch(args.ranks, LIMIT_S, decode, *given)
    return launch(args.ranks, LIMIT_S, train, args.busy, args.rounds, args.steps, args.json)


if __name__ == "__main__":
    sys.exit(main())
