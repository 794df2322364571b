"""Which way ``"auto"`` means, by the size of the tensor. A simple rule for now."""

from __future__ import annotations

from .cost import ANY_SIZE

DEVICES = ("cpu", "cuda")

# Rows of (below how many bytes of a rank's part, algorithm, protocol), rising.
Rows = list[tuple[int, str, str]]


def table(device: str, size: int) -> dict[str, Rows]:
    """The lists that a call of ``size`` ranks is chosen from: csrc/core/choice.h.

    On a CPU one_shot is the quickest up to some kilobytes, first over LL, and two_shot from there
    on; see docs/cpu.md. What a rank sends in one step of the ring is the tensor divided by the
    ranks, and there the protocols change places at about the same bytes a step.

    On a GPU nothing has been measured yet: the ring, over LL while its data, twice the size on the
    wire, is small; and never LL128 unasked, because it needs memory that shows 128 bytes at once,
    which is not probed.
    """
    if device == "cpu":
        one_shot_simple = 2 << 10 if size < 4 else 8 << 10
        direct: Rows = [
            (1025, "one_shot", "ll"),
            (one_shot_simple, "one_shot", "simple"),
            (ANY_SIZE, "two_shot", "simple"),
        ]
        ring: Rows = [
            (256 * size, "ring", "ll"),
            (1024 * size, "ring", "ll128"),
            (ANY_SIZE, "ring", "simple"),
        ]
        one_shot: Rows = [(1025, "one_shot", "ll"), (ANY_SIZE, "one_shot", "simple")]
        two_shot: Rows = [(ANY_SIZE, "two_shot", "simple")]
        automatic = direct
    else:
        ring = [(16 * 1024 * size, "ring", "ll"), (ANY_SIZE, "ring", "simple")]
        direct = [(64 << 10, "one_shot", "ll"), (ANY_SIZE, "two_shot", "ll")]
        one_shot = [(ANY_SIZE, "one_shot", "ll")]
        two_shot = [(ANY_SIZE, "two_shot", "ll")]
        automatic = ring
    return {
        "automatic": automatic,
        "in_rank_order": direct,
        "ring": ring,
        "one_shot": one_shot,
        "two_shot": two_shot,
        "others": ring,
    }
