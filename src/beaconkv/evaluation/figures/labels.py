"""Positions of labels, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence


def spread(wanted: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Move positions as little as needed (least squares) until any two have a distance of at least ``gap``.

    The order is kept; equal ones keep the order given. Where [low, high] has no room for all, the gap shrinks.

    Raises:
        ValueError: a negative gap, or high below low.
    """
    if gap < 0 or high < low:
        raise ValueError(f"gap must not be negative nor high below low, got gap={gap}, low={low}, high={high}")
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    if len(order) > 1:
        gap = min(gap, (high - low) / (len(order) - 1))
    # Without the gaps it is an isotonic regression: neighbours in the wrong order get their mean.
    blocks: list[list[float]] = []  # sum, count
    for rank, i in enumerate(order):
        blocks.append([wanted[i] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    top = high - gap * (len(order) - 1)
    placed = [min(max(total / count, low), top) for total, count in blocks for _ in range(int(count))]
    result = [0.0] * len(order)
    for rank, i in enumerate(order):
        result[i] = placed[rank] + rank * gap
    return result


def thin_out(positions: Sequence[float], gap: float) -> list[bool]:
    """Which of ascending positions get a label, with at least ``gap`` between them; the last one always does."""
    shown, nearest = [], float("inf")
    for position in reversed(positions):
        fits = nearest - position >= gap
        shown.append(fits)
        nearest = position if fits else nearest
    return shown[::-1]
