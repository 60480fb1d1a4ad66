"""How a layer reads a pass of several tokens: a row of a padded batch in the pieces in which it would be read alone.

An eviction may follow each piece, so where a prompt is cut decides what is kept. Pieces are therefore counted in a
row's own tokens. Where the host cuts the prompt by columns, padding included, tokens wait until a piece is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Rope

Span = tuple[int, int]
"""A half-open range of a row's tokens."""


@dataclass(frozen=True)
class HostCut:
    """The host reads a prompt in several passes.

    Attributes:
        size: columns of each pass.
        columns: that the cache will have been shown when the prompt is complete.
    """

    size: int
    columns: int


@dataclass(frozen=True)
class Tokens:
    """Keys, values, queries and rotation of some columns.

    Attributes:
        keys, values: (B, H_kv, n, D).
        queries: (B, H, n, D) after RoPE.
        rope: of these columns.
    """

    keys: Tensor
    values: Tensor
    queries: Tensor
    rope: Rope

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def columns(self, part: slice) -> Tokens:
        """Some neighbouring columns, as views."""
        keys, values, queries = (t[:, :, part] for t in (self.keys, self.values, self.queries))
        return Tokens(keys, values, queries, self.rope.steps(part.start, part.stop))

    def gather(self, order: Tensor) -> Tokens:
        """Columns of each row's own choice, copied. order: (B, m) int64."""

        def pick(t: Tensor) -> Tensor:
            index = order[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[-1])
            return t.gather(2, index)

        return Tokens(pick(self.keys), pick(self.values), pick(self.queries), self.rope.gather(order))

    def followed_by(self, other: Tokens) -> Tokens:
        """These columns and then others."""
        pairs = ((self.keys, other.keys), (self.values, other.values), (self.queries, other.queries))
        rows = self.keys.shape[0]
        tables = (
            torch.cat([t.expand(rows, -1, -1) for t in pair], dim=1)
            for pair in ((self.rope.cos, other.rope.cos), (self.rope.sin, other.rope.sin))
        )
        return Tokens(*(torch.cat(pair, dim=2) for pair in pairs), Rope(*tables, other.rope.apply, other.rope.table))


@dataclass(frozen=True)
class Waiting:
    """Tokens whose piece is not complete: the first ``counts[row]`` columns of each row."""

    tokens: Tokens
    counts: list[int]


def blocks_of(counts: Sequence[int], cut: HostCut | None, is_last: bool) -> tuple[list[list[Span]], list[int]]:
    """Rows' tokens in blocks of the size that the host reads at once.

    Args:
        counts: per row, tokens at hand: those that waited, and new ones.
        cut: how the host cuts, or None: the whole pass is one block.
        is_last: this pass ends the prompt.

    Returns:
        Blocks, each with a span for every row, which may be empty; and per row, where the tokens begin that must wait.
    """
    if cut is None:
        return [[(0, count) for count in counts]], list(counts)
    ends = [count if is_last else count // cut.size * cut.size for count in counts]
    number = max(-(-end // cut.size) for end in ends)
    starts = [i * cut.size for i in range(number)]
    return [[(min(start, end), min(start + cut.size, end)) for end in ends] for start in starts], ends


def pieces_of(block: Sequence[Span], size: int | None) -> list[list[Span]]:
    """A block in pieces of ``size`` tokens of each row; None: one piece."""
    longest = max(stop - start for start, stop in block)
    size = size or max(longest, 1)
    return [
        [(min(start + first, stop), min(start + first + size, stop)) for start, stop in block]
        for first in range(0, longest, size)
    ]


def order_of(spans: Sequence[Span], columns: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[bool]]]:
    """Where each row's tokens of a piece stand: (B, m) columns, and (B, m) whether there is one; rows are filled up."""
    width = max(stop - start for start, stop in spans)
    order, real = [], []
    for (start, stop), own in zip(spans, columns, strict=True):
        fill = width - (stop - start)
        order.append([*own[start:stop], *[0] * fill])
        real.append([True] * (stop - start) + [False] * fill)
    return order, real
