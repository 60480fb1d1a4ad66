"""Detection of a loop at the end of an output: evictions can make a model repeat itself until the length limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """``tokens[start:]`` repeats its first ``period`` tokens, ``repeats`` whole times and perhaps a part."""

    period: int
    repeats: int
    start: int


def repetition_loop(tokens: Sequence, min_repeats: int = 4, max_period: int = 512, min_tokens: int = 64) -> Loop | None:
    """The loop that a sequence ends in, exact to the token, with the shortest period.

    A list that counts ("1, 2, 3, ...") is no loop: its rounds differ.

    Args:
        tokens: Token ids, words, or a string (its characters are the tokens).
        min_repeats: Minimum number of whole rounds of a loop, at least 2.
        max_period: Maximum number of tokens of a round.
        min_tokens: Minimum number of tokens of all rounds together, so that a row of dashes is no loop.

    Returns:
        The loop or None. Takes at most ``max_period`` times ``max(min_repeats * max_period, min_tokens)``
        comparisons, and ``len(tokens)`` more for a loop that is found.

    Raises:
        ValueError: ``min_repeats`` below 2; ``max_period`` or ``min_tokens`` below 1.
    """
    for name, value, least in (
        ("min_repeats", min_repeats, 2),
        ("max_period", max_period, 1),
        ("min_tokens", min_tokens, 1),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    size = len(tokens)
    for period in range(1, min(max_period, size // min_repeats) + 1):
        needed = max(min_repeats * period, min_tokens)
        if needed <= size and _repeats_from(tokens, period, size - needed) == size - needed:
            start = _repeats_from(tokens, period, 0)
            return Loop(period, (size - start) // period, start)
    return None


def _repeats_from(tokens: Sequence, period: int, least: int) -> int:
    """Smallest start >= least from which the rest of the sequence has this period."""
    i = len(tokens) - period
    while i > least and tokens[i - 1] == tokens[i - 1 + period]:
        i -= 1
    return i
