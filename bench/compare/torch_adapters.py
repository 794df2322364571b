"""A rank's calls into the libraries that come with torch: Gloo, DeepSpeed and vLLM.

``options["loop"]`` is the path of the extension ``loops/torch_loop.cpp``, without which there are
no loops in C.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .adapters import Adapter, Bound
from .memory import Array, private


def extension(path: str) -> Any:
    """A compiled module, from its file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors_of(places: Sequence[Array], dtype: str) -> list[Any]:
    """The same memory as torch tensors."""
    torch = importlib.import_module("torch")
    return [torch.from_numpy(place).view(getattr(torch, dtype)) for place in places]


class TorchBound(Bound):
    """With a loop that takes torch tensors."""

    def __init__(
        self,
        places: Sequence[Array],
        tensors: Sequence[Any],
        call: Callable[[Any], object],
        loop: Callable[[Sequence[Any], int, int], list[int]] | None,
    ) -> None:
        super().__init__(places, [functools.partial(call, tensor) for tensor in tensors])
        self._tensors, self._loop = tensors, loop

    def loop(self, mode: str, first: int, calls: int) -> array[int]:
        assert self._loop is not None
        return array("q", self._loop(self._tensors, first, calls))


class TorchAdapter(Adapter):
    """The base of those that sum torch tensors."""

    dtypes = ("float32", "bfloat16", "float16")

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(options["threads"])
        self.loops = None
        if options.get("loop"):
            self.loops = extension(options["loop"])
            self.modes = ("py", "c")

    def bind(self, size: int, rotate: int, dtype: str) -> Bound:
        places = private(size, rotate, dtype)
        return TorchBound(places, tensors_of(places, dtype), self.call(), self.loop())

    def call(self) -> Callable[[Any], object]:
        """The function that a program in Python calls with a tensor."""
        raise NotImplementedError

    def loop(self) -> Callable[[Sequence[Any], int, int], list[int]] | None:
        """The loop in C++ over tensors: (tensors, first, calls)."""
        return None


class Gloo(TorchAdapter):
    """``dist.all_reduce`` over Gloo; in C++ ``ProcessGroup::allreduce``."""

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        self.dist = importlib.import_module("torch.distributed")
        store = f"file://{options['folder']}/gloo"
        self.dist.init_process_group("gloo", store, world_size=ranks, rank=rank)

    def version(self) -> str:
        return f"of torch {self.torch.__version__}"

    def call(self) -> Callable[[Any], object]:
        function: Callable[[Any], object] = self.dist.all_reduce
        return function

    def loop(self) -> Callable[[Sequence[Any], int, int], list[int]] | None:
        return self.loops and functools.partial(self.loops.process_group, self.dist.group.WORLD)

    def close(self) -> None:
        # Gloo's own threads may abort a process that ends while they run.
        self.dist.destroy_process_group()


class DeepSpeed(TorchAdapter):
    """DeepSpeed's all-reduce over shared memory, ``options["library"]``: its torch op."""

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        # The means by which its ranks find each other.
        os.environ["LOCAL_SIZE"] = str(ranks)
        os.environ["MASTER_ADDR"] = "ringkern"
        os.environ["MASTER_PORT"] = Path(options["folder"]).parent.name
        extension(options["library"]).initialize(ranks, rank)

    def version(self) -> str:
        return importlib.metadata.version("deepspeed")

    def call(self) -> Callable[[Any], object]:
        op: Callable[[Any], object] = self.torch.ops.deepspeed.inference_all_reduce_.default
        return op

    def loop(self) -> Callable[[Sequence[Any], int, int], list[int]] | None:
        return self.loops and functools.partial(self.loops.deepspeed, self.options["library"])


class Vllm(TorchAdapter):
    """vLLM's all-reduce over shared memory: its torch op, compiled by ``loops/vllm_shm.cpp``."""

    def __init__(self, rank: int, ranks: int, options: dict[str, Any]) -> None:
        super().__init__(rank, ranks, options)
        if ranks not in (2, 3, 4, 8):
            raise RuntimeError("it takes 2, 3, 4 or 8 ranks")
        self._library = extension(options["library"])
        self.modes = ("py", "c")
        self._name = f"ringkern-vllm-{Path(options['folder']).parent.name}"
        self._handle = self._library.init_shm_manager(self._name, ranks, rank, options["threads"])

    def met(self) -> None:
        self._library.join_shm_manager(self._handle, self._name)

    def version(self) -> str:
        return str(self.options.get("version", ""))

    def call(self) -> Callable[[Any], object]:
        op = self.torch.ops.ringkern_vllm.shm_allreduce.default
        return functools.partial(op, self._handle)

    def loop(self) -> Callable[[Sequence[Any], int, int], list[int]] | None:
        return functools.partial(self._library.time_all_reduce, self._handle)
