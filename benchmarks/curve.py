"""Milliseconds per step against the tokens seen, measured at some lengths; and their sum over a whole text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

REACH = 0.9
"""Share of a text that the curve of a growing cache has to cover; it counts as flat after its last point."""


class Curve:
    """Points of one method, straight between them and flat beyond the first and the last.

    Args:
        grows: Whether the cache, or the policy's state, grows with the text.

    Attributes:
        points: Points (tokens seen in the middle of the steps measured, mean milliseconds), by tokens.
    """

    def __init__(self, grows: bool) -> None:
        self.grows = grows
        self.points: list[tuple[float, float]] = []

    def add(self, first: int, milliseconds: list[float]) -> None:
        """Add steps of consecutive tokens, the first of which is the ``first``-th.

        Raises:
            ValueError: no steps, or a point before the last one.
        """
        if not milliseconds:
            raise ValueError(f"no steps were measured at {first} tokens")
        middle = first + (len(milliseconds) - 1) / 2
        if self.points and middle <= self.points[-1][0]:
            raise ValueError(f"points must come in order of length: {middle:g} after {self.points[-1][0]:g}")
        self.points.append((middle, sum(milliseconds) / len(milliseconds)))

    def seconds(self, start: int, stop: int) -> float:
        """Milliseconds of all steps whose tokens are numbered ``start`` to ``stop`` - 1.

        Raises:
            ValueError: the cache grows, and the text goes on far beyond the last point.
        """
        lengths, ms = zip(*self.points, strict=True)
        if self.grows and lengths[-1] < REACH * stop:
            raise ValueError(
                f"the cache still grows at {lengths[-1]:,.0f} tokens, the last length measured, and the text has "
                f"{stop:,}: measure at {REACH:.0%} of it or later"
            )
        return float(np.interp(np.arange(start, stop), lengths, ms).sum()) / 1000


def cycle_steps(tokens: int, cycle: int | None, until_full: int) -> int:
    """Number of steps to measure: ``tokens``, or, where there are evictions, whole cycles of at least as many steps.

    Args:
        tokens: Number of steps requested.
        cycle: Number of steps from one eviction to the next; None: there are none.
        until_full: Number of steps before the first eviction; 0 after it.
    """
    if cycle is None or tokens < until_full:
        return tokens
    return -(-tokens // cycle) * cycle


def as_lengths(text: str) -> list[int]:
    """``"0,4096"`` as numbers.

    Raises:
        ValueError: the text is no ascending list of whole numbers.
    """
    lengths = [int(part) for part in text.split(",")]
    if any(a >= b for a, b in pairwise(lengths)) or lengths[0] < 0:
        raise ValueError(f"fills must ascend from 0 or more, got {text!r}")
    return lengths
