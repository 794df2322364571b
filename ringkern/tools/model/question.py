"""The question to ``python -m ringkern model``: which GPU, or which hosts and network."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...choose import rings, topology
from ...choose.topology import Machine
from .. import options
from . import constants, cpu, one_gpu, sockets
from .estimate import Estimate, estimate
from .predict import Network, Node, estimates, node_of
from .published import PUBLISHED, median_error

TOPOLOGY = "dgx-h100"


@dataclass(frozen=True)
class Question:
    """The question, except for the sizes.

    Attributes:
        device: "cuda" or "cpu".
        name: of a host, for a title.
        hosts: number of hosts, 1 or more.
        ranks: number of ranks on each.
        predict: (hosts, bytes) to all ways of an all-reduce.
        head, foot: lines above and below a table.
        about: the same for programs.
        floor_us: bytes to the least time of any all-reduce, if known.
    """

    device: str
    name: str
    hosts: int
    ranks: int
    predict: Callable[[int, float], list[Estimate]]
    head: list[str]
    foot: list[str]
    about: dict[str, Any]
    floor_us: Callable[[float], float] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which GPU, or which hosts and which network."""
    add = parser.add_argument
    names = ", ".join(topology.recorded_names())
    add(
        "--device",
        choices=("cuda", "cpu"),
        help="cpu: hosts without GPUs; cuda: ranks of one process on one GPU, or a rank on each "
        f"GPU with --topology or --hosts; default: as --topology {TOPOLOGY}",
    )
    add("--gpu", choices=tuple(one_gpu.GPUS), help="that all ranks share (default H100)")
    add(
        "--topology",
        help=f"of a host with GPUs: NCCL's XML file, or one of {names} (default {TOPOLOGY})",
    )
    add(
        *("-n", "--ranks"),
        type=options.whole(1),
        help="on each host (default: one on each GPU; 8 on a CPU; in turn 2, 4 and 8 on one GPU)",
    )
    add("--cores", type=options.whole(1), help="of a host without GPUs (default: one a rank)")
    add("--threads", type=options.whole(1), help="of each rank on a CPU, a core each (default 1)")
    add(
        "--sockets",
        type=options.whole(1),
        help="of a host without GPUs, each with as many ranks, next to DeepSpeed and vLLM "
        "(default 1)",
    )
    add("--hosts", "--nodes", type=int, default=1, help="machines like this one (default 1)")
    add("--inter-gb-s", type=float, help="from each rank to other hosts; default: by its NICs")
    add(
        "--network-gbit",
        type=float,
        help="from each host to the others, for all of its ranks, in Gbit/s; default: by its "
        f"NICs; without GPUs {cpu.NETWORK_GBIT:g}",
    )
    add(
        "--inter-us",
        type=float,
        help="of a journey between hosts with LL, the others longer as in NCCL's table "
        f"(default {constants.HOP_US['network']['ll']}); without GPUs of a step of Gloo "
        f"(default {cpu.STEP_US + cpu.NETWORK_US:g})",
    )
    add("--arch", choices=constants.ARCHITECTURES, help="of the GPUs; default: as in the file")


def questions_of(args: argparse.Namespace) -> list[Question]:
    """Reads the arguments: one GPU and several numbers of ranks make a question for each.

    Raises:
        ValueError: the arguments do not fit together or with the machine.
    """
    others = _given(args, _OF_HOSTS)
    if args.gpu and others:
        raise ValueError(f"--gpu is of ranks that share a GPU: leave out {', '.join(others)}")
    if args.gpu and args.device == "cpu":
        raise ValueError("--gpu is of GPUs: leave it out, or --device cpu")
    if args.gpu or (args.device == "cuda" and not others):
        return _of_one_gpu(one_gpu.GPUS[args.gpu or "H100"], args.ranks)
    return [_of_hosts(args)]


_OF_SOCKETS = ("threads", "sockets")
_OF_HOSTS = ("topology", "cores", *_OF_SOCKETS, "arch", "inter_gb_s", "network_gbit", "inter_us")


def _given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Returns the options among these that were given, and those of several hosts."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
    return given + ["--hosts"] * (args.hosts != 1) + ["--sweep"] * args.sweep


def _of_hosts(args: argparse.Namespace) -> Question:
    if args.hosts < 1:
        raise ValueError(f"--hosts {args.hosts}: give a whole number from 1 on")
    if args.inter_gb_s is not None and args.network_gbit is not None:
        raise ValueError("--inter-gb-s and --network-gbit say the same: give one of them")
    for name in ("inter_gb_s", "network_gbit"):
        given = getattr(args, name)
        if given is not None and not 0 < given < math.inf:
            unit = "GB/s" if name == "inter_gb_s" else "Gbit/s"
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} {given}: give a number of {unit} above 0")
    if args.inter_us is not None and not 0 <= args.inter_us < math.inf:
        raise ValueError(f"--inter-us {args.inter_us}: give a number of microseconds from 0 on")
    if any(getattr(args, name) is not None for name in _OF_SOCKETS):
        return _of_sockets(args)
    return _of_cpus(args) if args.device == "cpu" else _of_gpus(args)


# ---- one GPU ------------------------------------------------------------------------------------


def _of_one_gpu(gpu: one_gpu.Gpu, ranks: int | None) -> list[Question]:
    if ranks is not None and not 2 <= ranks <= one_gpu.MOST_RANKS:
        raise ValueError(
            f"-n {ranks}: on one {gpu.name} are 2 to {one_gpu.MOST_RANKS} ranks, with 16 "
            "multiprocessors or more each"
        )
    every = one_gpu.RANKS if ranks is None else (ranks,)
    return [_of_ranks_on(gpu, k, first=k == every[0], last=k == every[-1]) for k in every]


def _of_ranks_on(gpu: one_gpu.Gpu, ranks: int, first: bool, last: bool) -> Question:
    def predict(_: int, nbytes: float) -> list[Estimate]:
        found = []
        for way in one_gpu.WAYS:
            time, least = (
                one_gpu.predict(gpu, way, ranks, size).time_us for size in (int(nbytes), 1)
            )
            found.append(estimate(str(way), "", ranks, nbytes, time, least))
        return sorted(found, key=lambda e: e.time_us)

    source = [f"one {gpu.name}, {gpu.source}; float32, in place, in CUDA graphs"]
    foot = [
        "share: the least time of any all-reduce on this GPU over that of the fastest way.",
        "Measured next to predicted: --check FILE, of a `make gpu`; that has no two_shot/ll.",
    ]
    return Question(
        device="cuda",
        name=gpu.name,
        hosts=1,
        ranks=ranks,
        predict=predict,
        head=[*(source if first else []), f"{ranks} ranks of one process"],
        foot=foot if last else [],
        about={"gpu": gpu.name, "source": gpu.source, "ranks": ranks},
        floor_us=lambda nbytes: gpu.floor_us(ranks, nbytes),
    )


# ---- hosts without GPUs -------------------------------------------------------------------------


def _of_cpus(args: argparse.Namespace) -> Question:
    for name in ("topology", "arch"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name} is of GPUs: leave it out, or --device cpu")
    ranks = args.ranks or 8
    host = cpu.Host(ranks, args.cores or ranks)
    gb_s = (args.network_gbit or cpu.NETWORK_GBIT) / 8 * cpu.DATA_SHARE
    if args.inter_gb_s is not None:
        gb_s = args.inter_gb_s * ranks
    step_us = cpu.STEP_US + cpu.NETWORK_US if args.inter_us is None else args.inter_us
    network = cpu.Ethernet(args.hosts, gb_s, step_us)
    head = [
        f"a host: {_counted(ranks, 'rank')} on {_counted(host.cores, 'core')}, inside as "
        + host.costs.source
    ]
    if args.hosts > 1:
        head.append(
            f"{args.hosts} hosts, {args.hosts * ranks} ranks: {gb_s:.4g} GB/s of data from "
            f"each host to the others; Gloo, {cpu.RAIL_GB_S:g} GB/s a rail, {step_us:g} us a step"
        )
    return Question(
        device="cpu",
        name="CPU host",
        hosts=args.hosts,
        ranks=ranks,
        predict=lambda hosts, size: cpu.estimates(host, cpu.Ethernet(hosts, gb_s, step_us), size),
        head=head,
        foot=_foot_of_cpus(args.hosts),
        about={
            "ranks": ranks,
            "cores": host.cores,
            "inside": host.costs.source,
            "network": None
            if args.hosts == 1
            else {"hosts": network.hosts, "host_gb_s": gb_s, "step_us": step_us},
        },
    )


def _foot_of_cpus(hosts: int) -> list[str]:
    if hosts == 1:
        return ["The ring alone: `python -m ringkern explain` knows the ways that are chosen from."]
    return [
        "Gloo alone is the flat ring; a flat tree, with steps as long as Gloo's, is there to",
        "compare with. What the network adds to a step is assumed: --inter-us.",
    ]


# ---- one host without GPUs, whose ranks own several cores ---------------------------------------


def _of_sockets(args: argparse.Namespace) -> Question:
    if args.device != "cpu":
        raise ValueError(
            "--threads and --sockets are of CPUs: give --device cpu, or leave them out"
        )
    if others := _given(args, [name for name in _OF_HOSTS if name not in _OF_SOCKETS]):
        raise ValueError(f"--threads and --sockets are of one host: leave out {', '.join(others)}")
    count, ranks = args.sockets or 1, args.ranks or 8
    if ranks % count:
        raise ValueError(
            f"-n {ranks} --sockets {count}: give each socket as many ranks, such as -n {2 * count}"
        )
    server = sockets.Server(ranks, args.threads or 1, count)
    return Question(
        device="cpu",
        name=f"CPU host, {_counted(count, 'socket')}",
        hosts=1,
        ranks=ranks,
        predict=lambda _, nbytes: sockets.estimates(server, nbytes),
        head=[
            f"a host: {_counted(ranks, 'rank')} of {_counted(server.threads, 'thread')} on "
            f"{_counted(count, 'socket')}, each with {server.memory_gb_s:g} GB/s of memory"
            + f", {server.link_gb_s:g} GB/s between them"
            * (count > 1)
        ],
        foot=[
            "Nothing was measured on several sockets. The same formulas against "
            f"{len(sockets.PUBLISHED)} published times of",
            f"DeepSpeed's: median error {sockets.median_error():.0%} (--device cpu --published).",
        ],
        about={
            "ranks": ranks,
            "threads": server.threads,
            "sockets": count,
            "memory_gb_s": server.memory_gb_s,
            "link_gb_s": server.link_gb_s,
            "median_error": sockets.median_error(),
        },
    )


# ---- hosts with GPUs ----------------------------------------------------------------------------


def _of_gpus(args: argparse.Namespace) -> Question:
    if args.cores is not None:
        raise ValueError("--cores is of hosts without GPUs: leave it out, or give --device cpu")
    name = args.topology or TOPOLOGY
    machine = _machine(name)
    node = node_of(machine, args.ranks, args.arch)
    network = _network(machine, node, args)

    def predict(hosts: int, size: float) -> list[Estimate]:
        between = None if hosts == 1 else Network(hosts, network.rank_gb_s, network.hop_us)
        return estimates(node, between, size)

    count = sum(row.ring for row in PUBLISHED)
    return Question(
        device="cuda",
        name=node.name or "the machine",
        hosts=args.hosts,
        ranks=node.ranks,
        predict=predict,
        head=_head(node, network),
        foot=[
            *(["NCCL alone is the faster of flat ring and flat tree."] if args.hosts > 1 else []),
            f"The same formulas against {count} published times of NCCL's rings, each in one node: "
            f"median error {median_error():.0%} (--published).",
        ],
        about=_about(node, network),
    )


def _machine(name: str) -> Machine:
    if name in topology.recorded_names():
        return topology.recorded(name)
    if Path(name).is_file():
        return topology.read(name)
    names = ", ".join(topology.recorded_names())
    raise ValueError(f"--topology {name}: there is no such file; recorded machines are {names}")


def _network(machine: Machine, node: Node, args: argparse.Namespace) -> Network:
    gb_s = args.inter_gb_s
    if args.network_gbit is not None:
        gb_s = args.network_gbit / 8 / node.ranks
    if gb_s is None:
        gb_s = sum(nic.gb_s for nic in machine.nics) / max(1, len(machine.gpus))
        if not gb_s and (args.hosts > 1 or args.sweep):
            raise ValueError(
                f"{node.name or args.topology} has no known NICs: give --inter-gb-s or "
                "--network-gbit"
            )
    hop_us = dict(constants.HOP_US["network"])
    if args.inter_us is not None:
        longer = args.inter_us - hop_us["ll"]
        hop_us = {protocol: us + longer for protocol, us in hop_us.items()}
    return Network(args.hosts, gb_s, hop_us)


def _head(node: Node, network: Network) -> list[str]:
    ranks = _counted(node.ranks, "rank")
    lines = [f"{node.name or 'the machine'}: {ranks}, {node.arch}, {node.link}"]
    if node.found is not None and not math.isinf(node.links_gb_s):
        orders = node.found.orders
        lines.append(
            f"rings: {len(orders)} of {node.found.gb_s:.4g} GB/s, limited by "
            f"{node.found.bottleneck}: " + ", ".join(" ".join(map(str, order)) for order in orders)
        )
    if network.nodes > 1:
        hops = ", ".join(f"{p} {network.hop_us[p]:.3g}" for p in constants.PROTOCOLS)
        lines.append(
            f"{network.nodes} hosts, {network.nodes * node.ranks} ranks: {network.rank_gb_s:.4g} "
            f"GB/s from each rank to other hosts, microseconds of a hop: {hops}"
        )
    return lines


def _about(node: Node, network: Network) -> dict[str, Any]:
    """Returns facts for programs; infinity becomes null."""
    found = node.found or rings.Rings((), math.inf, math.inf, math.inf, True, "", 0.0)
    return {
        "machine": node.name,
        "ranks": node.ranks,
        "architecture": node.arch,
        "link": node.link,
        "rings": {
            "orders": found.orders,
            "gb_s": finite(found.gb_s),
            "total_gb_s": finite(found.total_gb_s),
            "exact": found.exact,
            "bottleneck": found.bottleneck,
        },
        "network": None
        if network.nodes == 1
        else {"hosts": network.nodes, "rank_gb_s": network.rank_gb_s, "hop_us": network.hop_us},
        "median_error": median_error(),
    }


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def finite(number: float) -> float | None:
    """Returns a number for JSON; ``None``: it is no number, or infinite."""
    return number if math.isfinite(number) else None
