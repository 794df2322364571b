"""What this GPU can do, as a measure for the ring: see limits.cu and mix.cu."""

from __future__ import annotations

from typing import Any

from bench.gpu.ll128_probe import json_lines
from bench.gpu.part import Context, Failed


def run(context: Context) -> None:
    programs = [context.compile("limits.cu"), context.compile("mix.cu")]
    lines: list[dict[str, Any]] = []
    for program in programs:
        lines += json_lines(context.run([str(program)]).stdout)
        context.note(lines=lines)
    context.note(**floors(lines))
    lost = [line["how"] for line in lines if line.get("lost")]
    if lost:
        raise Failed(f"ping-pong: a block waited in vain: {', '.join(lost)}")


def floors(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The few figures that the part ``speed`` compares with.

    ``launch_us``: an empty kernel of a graph, with the ring's arguments; ``hop_us``: a hop of each
    protocol's own kind; ``hbm_gb_s``, ``l2_gb_s``: the best copies; ``mix``: bus bandwidth of the
    ring without its waits, by protocol, ranks and size: the better one of its two geometries.
    """
    hops = {line["how"]: line["ns_per_hop"] / 1e3 for line in lines if line["limit"] == "ping_pong"}

    def hop(kind: str) -> float:
        return next((us for how, us in hops.items() if f"({kind})" in how), 0.0)

    def best(limit: str, key: str) -> float:
        return max((line[key] for line in lines if line["limit"] == limit), default=0.0)

    launches = [
        line["us"]
        for line in lines
        if line["limit"] == "empty_launch" and line["how"] == "graph, as the ring's"
    ]
    mix: dict[str, float] = {}
    for line in lines:
        if line["limit"] == "mix":
            key = mix_key(line["protocol"], line["ranks"], line["size_bytes"])
            mix[key] = max(mix.get(key, 0.0), line["busbw_gb_s"])
    return {
        "launch_us": min(launches, default=0.0),
        "hop_us": {"simple": hop("Simple"), "ll": hop("LL"), "ll128": hop("LL128")},
        "hbm_gb_s": best("hbm_copy", "gb_s"),
        "l2_gb_s": best("l2_copy", "gb_s"),
        "mix": mix,
    }


def mix_key(protocol: str, ranks: int, size: int) -> str:
    return f"{protocol}/{ranks}/{size}"


def floor_us(known: dict[str, Any], protocol: str, ranks: int, size: int) -> float:
    """No all-reduce of this kind can take less: 0.0 where the limits are not known.

    The longer of two: a launch and 2 (k-1) hops; and the ring without its waits, where it was
    measured with this size.
    """
    if not known:
        return 0.0
    latency: float = known["launch_us"] + 2 * (ranks - 1) * known["hop_us"][protocol]
    busbw: float = known["mix"].get(mix_key(protocol, ranks, size), 0.0)
    return max(latency, size * 2 * (ranks - 1) / ranks / busbw / 1e3) if busbw else latency
