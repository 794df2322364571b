"""``python -m ringkern model``: its arguments, and predictions as text, JSON or curves."""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from typing import Any

from .. import options, rings, topology
from ..explain import curves
from ..topology import Machine
from ..units import parse_size, size_text
from . import constants
from .predict import Estimate, Network, Node, estimates, node_of
from .published import PUBLISHED, error_of, median_error, predicted

WAYS = ("flat ring", "hierarchy", "hierarchy, overlapped", "hierarchy, tree between")
DEFAULT_SIZES = tuple(1 << shift for shift in range(10, 31, 2))
Rows = list[tuple[int, list[Estimate]]]

DESCRIPTION = """\
Predicts the time and bandwidth of all-reduce on GPUs of one machine or many, from its links."""

EPILOG = """\
Times follow NCCL's published constants for rings of its three protocols, over the rings that are
found on the machine's links. No GPU is needed, and none was measured: --published says how far
the same formulas are from what others measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``model``."""
    parser.epilog = EPILOG
    add = parser.add_argument
    names = ", ".join(topology.recorded_names())
    add("--topology", default="dgx-h100", help=f"NCCL's XML file, or one of {names}")
    add("-n", "--ranks", type=options.whole(1), help="on each node, one a GPU (default: all GPUs)")
    add("--nodes", type=int, default=1, help="machines like this one (default 1)")
    add("--inter-gb-s", type=float, help="from each rank to other nodes; default: by its NICs")
    add(
        "--inter-us",
        type=float,
        help="of a journey between nodes with LL, the others longer as in NCCL's table "
        f"(default {constants.HOP_US['network']['ll']})",
    )
    add("--arch", choices=constants.ARCHITECTURES, help="of the GPUs; default: as in the file")
    add("--sizes", help="bytes, as 8K,1M,1G (default 1K to 1G)")
    add("--plot", type=Path, metavar="FILE", help="draw times; needs matplotlib")
    add("--published", action="store_true", help="compare with times of NCCL that were published")
    options.add_timeout(parser, 600.0)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Does what the arguments say; the exit status.

    Raises:
        ValueError: they do not fit together or with the machine.
    """
    output = options.Output(args.json)
    if args.published:
        output.answer(published_text())
        output.json({"rows": published_rows(), "median_error": median_error()})
        return 0
    if args.plot:
        curves.check(args.plot)
    machine = _machine(args.topology)
    node = node_of(machine, args.ranks, args.arch)
    network = _network(machine, node, args)
    sizes = _sizes(args.sizes)
    rows = [(size, estimates(node, network, size)) for size in sizes]
    if args.plot:
        plot(node, network, rows, args.plot)
    output.answer(as_text(node, network, rows))
    output.json(as_dict(node, network, rows))
    return 0


def _machine(name: str) -> Machine:
    if name in topology.recorded_names():
        return topology.recorded(name)
    if Path(name).is_file():
        return topology.read(name)
    names = ", ".join(topology.recorded_names())
    raise ValueError(f"--topology {name}: there is no such file; recorded machines are {names}")


def _network(machine: Machine, node: Node, args: argparse.Namespace) -> Network | None:
    if args.nodes < 1:
        raise ValueError(f"--nodes {args.nodes}: give a whole number from 1 on")
    if args.nodes == 1:
        return None
    gb_s = args.inter_gb_s
    if gb_s is None:
        gb_s = sum(nic.gb_s for nic in machine.nics) / max(1, len(machine.gpus))
        if not gb_s:
            raise ValueError(f"{node.name or args.topology} has no known NICs: give --inter-gb-s")
    if not 0 < gb_s < math.inf:
        raise ValueError(f"--inter-gb-s {gb_s}: give a number of GB/s above 0")
    hop_us = dict(constants.HOP_US["network"])
    if args.inter_us is not None:
        if not 0 <= args.inter_us < math.inf:
            raise ValueError(f"--inter-us {args.inter_us}: give a number of microseconds from 0 on")
        longer = args.inter_us - hop_us["ll"]
        hop_us = {protocol: us + longer for protocol, us in hop_us.items()}
    return Network(args.nodes, gb_s, hop_us)


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return DEFAULT_SIZES
    try:
        sizes = tuple(parse_size(part) for part in text.split(","))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--sizes: {error}") from None
    if not all(sizes):
        raise ValueError(f"--sizes {text}: give sizes above 0")
    return sizes


def _columns(rows: Rows) -> list[str]:
    """Of one node the protocols; of several the ways."""
    found = {name for estimate in rows[0][1] for name in (estimate.way, estimate.protocol)}
    return [name for name in (constants.PROTOCOLS if "ring" in found else WAYS) if name in found]


def _fastest(found: list[Estimate], column: str) -> Estimate:
    """The first, which is the fastest, of a column."""
    return next(e for e in found if column in (e.way, e.protocol))


def as_text(node: Node, network: Network | None, rows: Rows) -> str:
    """A table of times in microseconds; the fastest is marked."""
    lines = [*_head(node, network), ""]
    columns = _columns(rows)
    widths = [max(10, len(column) + 1) for column in columns]
    names = "".join(f" {column:>{width}}" for column, width in zip(columns, widths))
    lines.append(f"{'size':>6}{names}   {'fastest':<26}{'bus GB/s':>9}")
    for size, found in rows:
        best = found[0]
        line = f"{size_text(size):>6}"
        for column, width in zip(columns, widths):
            estimate = _fastest(found, column)
            mark = "*" if estimate is best else " "
            line += f" {estimate.time_us:>{width - 1}.1f}{mark}"
        line += f"   {best.way + ', ' + best.protocol:<26}{best.bus_gb_s:>9.1f}"
        lines.append(line)
    lines += ["", "Times in microseconds, predicted; * the fastest."]
    if network is not None:
        lines.append(
            "Not counted, only to compare with: phases that overlap as if cut in endlessly many "
            "pieces, and\ntwo trees between the nodes."
        )
    count = sum(row.ring for row in PUBLISHED)
    lines.append(
        f"The same formulas against {count} published times of NCCL's rings, each in one node: "
        f"median error {median_error():.0%} (--published)."
    )
    return "\n".join(lines)


def _head(node: Node, network: Network | None) -> list[str]:
    ranks = f"{node.ranks} rank{'s' * (node.ranks > 1)}"
    lines = [f"{node.name or 'the machine'}: {ranks}, {node.arch}, {node.link}"]
    if node.found is not None and not math.isinf(node.links_gb_s):
        orders = node.found.orders
        lines.append(
            f"rings: {len(orders)} of {node.found.gb_s:.4g} GB/s, limited by "
            f"{node.found.bottleneck}: " + ", ".join(" ".join(map(str, order)) for order in orders)
        )
    if network is not None:
        journeys = ", ".join(f"{p} {network.hop_us[p]:.3g}" for p in constants.PROTOCOLS)
        lines.append(
            f"{network.nodes} nodes, {network.nodes * node.ranks} ranks: {network.rank_gb_s:.4g} "
            f"GB/s from each rank to other nodes, microseconds of a journey: {journeys}"
        )
    return lines


def as_dict(node: Node, network: Network | None, rows: Rows) -> dict[str, Any]:
    """All of it; what is infinite is null."""
    found = node.found or rings.Rings((), math.inf, math.inf, math.inf, True, "", 0.0)
    return {
        "machine": node.name,
        "ranks": node.ranks,
        "architecture": node.arch,
        "link": node.link,
        "rings": {
            "orders": found.orders,
            "gb_s": _finite(found.gb_s),
            "total_gb_s": _finite(found.total_gb_s),
            "exact": found.exact,
            "bottleneck": found.bottleneck,
        },
        "network": network
        and {"nodes": network.nodes, "rank_gb_s": network.rank_gb_s, "hop_us": network.hop_us},
        "rows": [
            {"nbytes": size, "estimates": [_plain(estimate) for estimate in every]}
            for size, every in rows
        ],
        "median_error": median_error(),
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {**estimate._asdict(), "bus_gb_s": _finite(estimate.bus_gb_s)}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def published_rows() -> list[dict[str, Any]]:
    """Published times, what is predicted, and the error of it."""
    return [
        {
            **row._asdict(),
            "predicted_us": predicted(row).time_us,
            "protocol": predicted(row).protocol,
            "error": error_of(row),
        }
        for row in PUBLISHED
    ]


def published_text() -> str:
    """The table of published times."""
    lines = [
        f"{'system':<24}{'size':>6}{'measured':>10}{'predicted':>10}  {'protocol':<9}{'error':>7}"
        "  source"
    ]
    for row in published_rows():
        error = f"{row['error']:+.0%}" + (" " if row["ring"] else "n")
        lines.append(
            f"{row['system']:<24}{size_text(row['nbytes']):>6}{row['time_us']:>10.1f}"
            f"{row['predicted_us']:>10.1f}  {row['protocol']:<9}{error:>7}  {row['source']}"
        )
    count = sum(row.ring for row in PUBLISHED)
    lines += [
        "",
        "Microseconds of NCCL's all-reduce; error: predicted over measured, less 1.",
        "n: the switches reduced (NVLS): a ring cannot follow, and the row is not counted.",
        f"Median error of the other {count}: {median_error():.0%}.",
    ]
    return "\n".join(lines)


def plot(node: Node, network: Network | None, rows: Rows, file: Path) -> None:
    """Draws the times of all ways, by size; after :func:`curves.check`."""
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(7.2, 5.2), layout="constrained")
    panel = figure.subplots()
    for number, column in enumerate(_columns(rows)):
        points = [(size, _fastest(found, column)) for size, found in rows]
        style = "-" if points[0][1].compared else ":"
        panel.plot(
            [size for size, _ in points],
            [estimate.time_us for _, estimate in points],
            style,
            color=f"C{number}",
            label=column,
        )
    nodes = f"{network.nodes} x " if network else ""
    title = f"all-reduce, {nodes}{node.name or 'the machine'}, predicted"
    curves.finish(panel, title)
    figure.savefig(file, dpi=150)
