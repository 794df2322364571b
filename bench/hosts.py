"""All-reduce between hosts: ringkern and flat Gloo in turn, and the bytes that cross the network.

    python bench/hosts.py --hosts 2 --ranks 2 --gbit 1 --out out.json --plot out.png
    torchrun --nnodes 2 --nproc-per-node 2 ... bench/hosts.py --out out.json    # real hosts

Without torchrun, the hosts are network namespaces of this machine, with a wire each to a switch,
which needs root or user namespaces. Under torchrun they are its nodes, and bytes are counted on
the interface that GLOO_SOCKET_IFNAME names.

Contenders: `ring_all_reduce` over a group of Gloo, `dist.all_reduce` over the backend "ringkern",
and `dist.all_reduce` over Gloo, whose ring of all ranks knows nothing of hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hosts_rank import CONTENDERS, Here, contenders, row

from ringkern.choose.cost import bus_share
from ringkern.tools import figures, launch, options
from ringkern.tools.bench import perf
from ringkern.tools.bench.report import circumstances, machine, origin
from ringkern.units import parse_size

ROOT = Path(__file__).resolve().parents[1]


def measure(args: argparse.Namespace) -> int:
    """One rank of all; rank 0 prints and writes. The exit status."""
    torch.set_num_threads(1)
    here, field = Here.find(), contenders(args.contenders)
    about = about_run(args, here)
    first = dist.get_rank() == 0
    if first:
        print(header(about), flush=True)
    rows: list[dict[str, Any]] = []
    for size in perf.geometric_sizes(args.minbytes, args.maxbytes, args.stepfactor):
        results = row(field, size, here, args.repeats, args.seconds)
        rows.append({"size_bytes": size, "results": {n: asdict(r) for n, r in results.items()}})
        if first:
            print(line(rows[-1]), flush=True)
    if first and args.out:
        args.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    if first and args.plot:
        draw(rows, about, args.plot)
    return int(any(result["wrong"] for row in rows for result in row["results"].values()))


def about_run(args: argparse.Namespace, here: Here) -> dict[str, Any]:
    """Lists what the figures depend on, and what theory says of the bytes."""
    shares = {
        name: bus_share("all_reduce", sum(here.ranks) if name == "gloo" else len(here.ranks))
        for name in args.contenders
    }
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "machine": machine(),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": args.command or shlex.join(["python", *sys.argv]),
        "hosts": args.wire or "the nodes of torchrun",
        "ranks_on_host": here.ranks,
        "congestion_control": control.read_text().strip(),
        "dtype": "float32",
        "repeats": args.repeats,
        "theory_sent_over_size": shares,
    }


def header(about: dict[str, Any]) -> str:
    """The lines above the rows."""
    names = list(about["theory_sent_over_size"])
    ranks = " + ".join(str(count) for count in about["ranks_on_host"])
    theory = ", ".join(f"{name} {s:.3f}" for name, s in about["theory_sent_over_size"].items())
    return "\n".join(
        [
            *circumstances(about["machine"], about["date"], about["command"]),
            f"# hosts: {about['hosts']}; {ranks} ranks; TCP {about['congestion_control']}",
            "# all-reduce of float32, in place, sum; median of "
            f"{about['repeats']} repeats, contenders in turn, each as on its slowest rank",
            f"# sent: bytes that a host sends in a call, the most of all hosts, over the size; "
            f"by theory {theory}",
            f"# {'':10}" + "".join(f"{name:>20}" for name in names) + ratio_names(names),
            f"# {'size':>10}" + f"{'us':>12}{'sent':>8}" * len(names),
        ]
    )


def ratio_names(names: list[str]) -> str:
    return "".join(f"{f'gloo/{name}':>16}" for name in names if name != "gloo" and "gloo" in names)


def line(row: dict[str, Any]) -> str:
    """One row."""
    size, results = row["size_bytes"], row["results"]
    text = f"  {size:10}"
    for result in results.values():
        sent = result["sent_bytes"]
        text += f"{result['time_us']:12.1f}{f'{max(sent) / size:8.3f}' if sent else 'n/a':>8}"
    for name in results if "gloo" in results else []:
        if name != "gloo":
            text += f"{results['gloo']['time_us'] / results[name]['time_us']:16.2f}"
    wrong = [name for name, result in results.items() if result["wrong"]]
    return text + (f"  WRONG: {', '.join(wrong)}" if wrong else "")


def draw(rows: list[dict[str, Any]], about: dict[str, Any], file: Path) -> None:
    """The picture: time over size, and how many times as long Gloo takes."""
    figure, [[times, bytes_]] = figures.panels(1, 2, (5.5, 4.6))
    sizes = [row["size_bytes"] for row in rows]
    for name, share in about["theory_sent_over_size"].items():
        results = [row["results"][name] for row in rows]
        color = {"ringkern": figures.BLUE, "backend": figures.RED}.get(name, figures.GREY)
        style = {"color": color, "label": name}
        times.plot(sizes, [result["time_us"] for result in results], marker="o", **style)
        if all(result["sent_bytes"] for result in results):
            sent = [max(r["sent_bytes"]) / size for r, size in zip(results, sizes)]
            bytes_.plot(sizes, sent, marker="o", **style)
            bytes_.axhline(share, color=style["color"], linestyle=":", linewidth=1)
    figures.over_sizes(times, sizes, about["hosts"])
    times.set_ylabel("time of a call, median")
    title = "bytes that a host sends / size; dotted: theory"
    figures.over_sizes(bytes_, sizes, title, times=False)
    for panel in (times, bytes_):
        panel.legend(fontsize="small")
    figures.save(figure, file, origin(about["machine"], about["date"], about["command"]))


def run_in_namespaces(args: argparse.Namespace) -> int:
    """Makes the hosts, and starts this program as their ranks; the exit status.

    Raises:
        ValueError: this machine does not permit namespaces, or shaped wires between them.
    """
    sys.path.insert(0, str(ROOT))
    from tests.hosts import namespaces

    if reason := namespaces.why_not(args.gbit, args.delay_ms):
        raise ValueError(
            f"hosts cannot be made of network namespaces here: {reason}. On real hosts, start "
            "this program with torchrun on each"
        )
    ranks = args.ranks * args.hosts if len(args.ranks) == 1 else args.ranks
    speed = "as fast as they go" if args.gbit is None else f"{args.gbit:g} Gbit/s each way"
    delay = "" if args.delay_ms is None else f", {args.delay_ms:g} ms"
    wire = f"{args.hosts} network namespaces, veth wires to a bridge, {speed}{delay}"
    command = shlex.join(["python", "bench/hosts.py", *sys.argv[1:]])
    own = [str(Path(__file__).resolve()), *sys.argv[1:], "--wire", wire, "--command", command]
    for option in ("out", "plot"):  # the ranks work in another folder
        if path := getattr(args, option):
            own += [f"--{option}", str(path.resolve())]
    with (
        ThreadPoolExecutor(1) as pool,
        namespaces.Net(args.hosts, args.gbit, args.delay_ms) as net,
    ):
        job = net.start(own, ranks)
        ended = pool.submit(job.wait, args.timeout)
        shown = 0
        while not ended.done():
            time.sleep(0.2)
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                text = job.out(0)
                print(text[shown:], end="", flush=True)
                shown = len(text)
        results = ended.result()
    print(results[0].out[shown:], end="", flush=True)
    failed = [result for result in results if result.status != 0]
    for result in failed:
        how = "was killed, late" if result.status is None else f"ended with {result.status}"
        print(f"rank {result.rank} {how}:\n{result.err}", file=sys.stderr)
    return 1 if failed else 0


def by_host(text: str) -> list[int]:
    """A type of argument: ranks on each host, as "2", or one by one, as "3,2"."""
    return [options.whole(1)(number) for number in text.split(",")]


def positive(text: str) -> float:
    """A type of argument: more than 0, and a number."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")


def names(text: str) -> list[str]:
    """A type of argument: contenders."""
    found = list(dict.fromkeys(text.split(",")))
    if not set(found) <= {*CONTENDERS}:
        raise argparse.ArgumentTypeError(f"{text!r}: choose of {', '.join(CONTENDERS)}")
    return found


def main() -> int:
    parser = options.Parser("bench/hosts.py", description=(__doc__ or "").splitlines()[0])
    add, whole = parser.add_argument, options.whole
    add("--hosts", type=whole(1), default=2, help="namespaces to make (default 2)")
    add("--ranks", type=by_host, default=[2], help="on each host, or as 3,2 (default 2)")
    add("--gbit", type=positive, help="Gbit/s of a host's wire (default: as it is)")
    add("--delay-ms", type=positive, help="from host to host; needs the kernel's netem")
    add("-b", "--minbytes", type=parse_size, default=1 << 10, help="smallest size (default 1K)")
    add("-e", "--maxbytes", type=parse_size, default=64 << 20, help="largest size (default 64M)")
    add("-f", "--stepfactor", type=whole(2), default=4, help="from size to size (default 4)")
    known = ", ".join(CONTENDERS)
    add(
        "--contenders",
        type=names,
        default=[*CONTENDERS],
        help=f"of {known}, with commas (default all)",
    )
    add("--repeats", type=whole(1), default=15, help="of each contender and size (default 15)")
    add("--seconds", type=options.seconds, default=0.1, help="about, for a repeat (default 0.1)")
    add("--timeout", type=options.seconds, default=900.0, help="of all, seconds (default 900)")
    add("--out", type=options.new_file, help="a file for all figures, as JSON")
    add("--plot", type=options.picture, help="a file for a picture; needs matplotlib")
    add("--wire", help=argparse.SUPPRESS)
    add("--command", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if len(args.ranks) not in (1, args.hosts):
        parser.error(f"--ranks: {len(args.ranks)} numbers for {args.hosts} hosts")
    if launch.torchrun() is not None:
        return launch.run(None, args.timeout, measure, args)
    try:
        return run_in_namespaces(args)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
