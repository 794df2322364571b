"""``python -m ringkern trace``: records an all-reduce round the ring, and draws it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ... import build_info
from ...config import PROTOCOLS
from ...units import parse_size, size_text
from .. import launch, options
from . import timeline
from .chrome import chrome_trace
from .events import Trace
from .page import page
from .record import record
from .summary import say_ns, summarize, title

DESCRIPTION = """\
Records when each rank began and ended each verb of an all-reduce round the ring, and how long it
waited for whom, and draws it: as a page with the chunks going round, as a timeline, and for
Perfetto. Starts the ranks by itself, or joins those of torchrun."""

EPILOG = """\
Sizes are bytes, as 8, 64K, 1M or 1G (K = 1024). Of several calls, that of median duration is kept.
What was recorded is always written too, as events.json in DIR."""

EVENTS = "events.json"


@dataclass(frozen=True)
class Format:
    """A kind of picture.

    Attributes:
        file: its name.
        says: how to use it.
        write: writes it, given a trace, the requested loops, and a path.
    """

    file: str
    says: str
    write: Callable[[Trace, tuple[int, int] | None, Path], None]

    @property
    def is_drawn(self) -> bool:
        """Returns whether it needs matplotlib."""
        return self.write is _draw


def _draw(trace: Trace, loops: tuple[int, int] | None, file: Path) -> None:
    timeline.draw(trace, file, loops)


def _page(trace: Trace, loops: tuple[int, int] | None, file: Path) -> None:
    file.write_text(page(trace), encoding="utf-8")


def _chrome(trace: Trace, loops: tuple[int, int] | None, file: Path) -> None:
    file.write_text(json.dumps(chrome_trace(trace)) + "\n", encoding="utf-8")


FORMATS = {
    "html": Format("ring.html", "the chunks going round: open it in a browser", _page),
    "svg": Format("timeline.svg", "who waited for whom", _draw),
    "png": Format("timeline.png", "the same as pixels", _draw),
    "chrome": Format("perfetto.json", "open it at https://ui.perfetto.dev", _chrome),
}
DEFAULT_FORMATS = ("html", "svg", "chrome")


@dataclass(frozen=True)
class Settings:
    """The options of recording and drawing; sent to all ranks."""

    nbytes: int
    protocol: str
    dtype: str
    device: str
    warmup: int
    loops: tuple[int, int] | None
    folder: Path
    formats: tuple[str, ...]
    undrawn: bool  # the timeline was not asked for, and matplotlib is missing
    json: Path | None
    command: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.epilog = EPILOG
    add = parser.add_argument
    options.add_ranks(parser)
    add("--size", type=parse_size, default=1 << 20, help="of each rank's tensor (default 1M)")
    add("-d", "--datatype", default="float32", help="default float32")
    add("--proto", default="auto", choices=PROTOCOLS, help="default auto, which is simple here")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="default cpu")
    add("-w", "--warmup", type=options.whole(0), default=3, help="calls before it (default 3)")
    add("--out", type=Path, default=Path("ringkern-trace"), metavar="DIR",
        help="where the files go (default %(default)s)")  # fmt: skip
    formats = f"of {', '.join(FORMATS)}, with commas (default {','.join(DEFAULT_FORMATS)})"
    add("--formats", type=_formats, metavar="LIST", help=formats)
    add("--loops", type=_loops, metavar="FIRST:LAST",
        help="that svg and png show (default: from 0, as many as are readable)")  # fmt: skip
    add("--from", dest="recorded", type=Path, metavar="FILE",
        help=f"draw what was recorded earlier, an {EVENTS}; records nothing")  # fmt: skip
    options.add_timeout(parser, 300.0, own=True)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status.

    Raises:
        ValueError: the arguments do not fit together, or ask for missing things.
        OSError: a file cannot be read or written, or the ranks did not end.
    """
    settings = _settings(args)
    if args.recorded:
        if launch.torchrun() is not None:
            raise ValueError("--from: draws what is there, and needs no ranks; without torchrun")
        _write(_read(args.recorded), settings)
        return 0
    _check_call(args, settings)
    _make_folder(settings.folder)
    return launch.run(args.ranks, args.timeout, trace_rank, settings)


def _make_folder(folder: Path) -> None:
    """Makes the folder of ``--out``; ValueError if no file can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: {error.strerror}; give another place") from None
    options.check_writable(folder)


def trace_rank(settings: Settings) -> int:
    """Runs one rank of ``trace``; rank 0 writes and prints. Returns the exit status."""
    first = dist.get_rank() == 0
    if settings.device == "cuda":  # ranks may share one
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    try:
        trace = record(
            settings.nbytes,
            protocol=settings.protocol,
            dtype=settings.dtype,
            warmup=settings.warmup,
            device=settings.device,
            command=settings.command,
        )
        if trace is not None:
            _write(trace, settings)
    except ValueError as error:  # on all ranks, before anything is sent; or in the pictures
        if first:
            print(f"python -m ringkern trace: error: {error}", file=sys.stderr)
        return 2
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    """Returns the settings that the arguments mean."""
    formats, undrawn = args.formats or DEFAULT_FORMATS, False
    if any(FORMATS[name].is_drawn for name in formats):
        try:
            timeline.check()
        except ValueError:
            if args.formats:
                raise
            formats = tuple(name for name in formats if not FORMATS[name].is_drawn)
            undrawn = True
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out {args.out}: is a file; give a directory, which is made")
    return Settings(
        nbytes=args.size,
        protocol=args.proto,
        dtype=options.dtype_of(args.datatype, build_info()["dtypes"]),
        device=args.device,
        warmup=args.warmup,
        loops=args.loops,
        folder=args.out,
        formats=formats,
        undrawn=undrawn,
        json=args.json,
        command=args.command_line,
    )


def _check_call(args: argparse.Namespace, settings: Settings) -> None:
    """Raises if the call cannot be recorded, before ranks are started."""
    ranks = launch.number_of_ranks(args.ranks)
    if ranks < 2:
        raise ValueError("-n 1: a ring of one rank sends nothing; give -n 2 or more")
    if not settings.nbytes:
        raise ValueError("--size 0: an empty tensor sends nothing; give 1 or more")
    if settings.device == "cuda":
        if not build_info()["cuda"]:
            raise ValueError(
                "--device cuda: ringkern was built without CUDA kernels; `python -m ringkern "
                "doctor` says what they take. Or leave it out: ranks on a CPU"
            )
        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch finds no GPU; leave it out: ranks on a CPU")
    if settings.device == "cpu":
        needed = 3 * ranks * settings.nbytes  # the input, the result, and the expected result
        asked = f"--size {size_text(settings.nbytes)}"
        launch.check_memory(ranks, needed, asked, "--size or -n")


def _read(file: Path) -> Trace:
    try:
        trace = Trace.from_json(file.read_text(encoding="utf-8"))
        trace.check()
    except ValueError as error:
        raise ValueError(f"--from {file}: {error}") from None
    return trace


def _write(trace: Trace, settings: Settings) -> None:
    """Writes the files, and prints their contents and a summary of the trace."""
    if settings.loops and any(FORMATS[name].is_drawn for name in settings.formats):
        timeline.Window.of(trace, settings.loops)  # checked before the first file is written
    _make_folder(settings.folder)
    files = {"events": settings.folder / EVENTS}
    files["events"].write_text(trace.to_json(), encoding="utf-8")
    for name in settings.formats:
        files[name] = settings.folder / FORMATS[name].file
        FORMATS[name].write(trace, settings.loops, files[name])
    output = options.Output(settings.json)
    output.answer(_report(trace, files, settings.undrawn))
    output.json(_as_json(trace, files, settings.command))


def _report(trace: Trace, files: dict[str, Path], undrawn: bool) -> str:
    found = summarize(trace)
    lines = [f"{title(trace)}: {say_ns(found.call_ns)}"]
    lines += [f"  rank {one.rank} {one.text()}" for one in found.ranks]
    lines += [f"  {found.reason()}"] if found.reason() else []
    lines += [""]
    says = {name: kind.says for name, kind in FORMATS.items()}
    says["events"] = "what was recorded; `trace --from` it draws it again"
    width = max(len(str(file)) for file in files.values())
    order = [*(name for name in FORMATS if name in files), "events"]
    lines += [f"{files[name]!s:<{width}}  {says[name]}" for name in order]
    if undrawn:
        lines.append("no timeline as svg or png without matplotlib: pip install matplotlib")
    return "\n".join(lines)


def _as_json(trace: Trace, files: dict[str, Path], command: str) -> dict[str, Any]:
    """Returns all data but the events, which are in a file."""
    about = ("collective", "ranks", "channels", "loops", "protocol", "dtype", "count", "device")
    return {
        "command": command,
        "machine": trace.machine,
        "date": trace.date,
        "call": {name: getattr(trace, name) for name in about},
        **summarize(trace).as_dict(),
        "files": {name: str(file) for name, file in files.items()},
    }


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in FORMATS:
            hint = options.did_you_mean(name, FORMATS)
            raise argparse.ArgumentTypeError(f"{name!r}: choose of {', '.join(FORMATS)}{hint}")
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: choose of {', '.join(FORMATS)}")
    return names


def _loops(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give the first and the last loop, as 0:3")
    return int(found[1]), int(found[2] or found[1])
