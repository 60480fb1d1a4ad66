"""How a layer reads a pass of several tokens: a row of a padded batch in the chunks in which it would be read alone.

An eviction may follow each chunk, so where a prompt is cut decides what is kept. Chunks are therefore counted in a
row's own tokens. Where the host cuts the prompt by columns, padding included, tokens wait until a chunk is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...cache import pick_steps
from ...types import Rope

Span = tuple[int, int]
"""A half-open range of a row's tokens."""


@dataclass(frozen=True)
class HostCut:
    """The host reads a prompt in several passes.

    Attributes:
        size: number of columns of each pass.
        columns: number of columns that the cache has been shown when the prompt is complete.
    """

    size: int
    columns: int

    def expects(self, num_new: int, columns: int) -> bool:
        """Whether a pass of ``num_new`` columns after ``columns`` others continues this prompt, or follows it."""
        left = self.columns - columns
        return left <= 0 or num_new in (min(self.size, left), min(self.size, left - 1))  # transformers 4 keeps one back


@dataclass(frozen=True)
class Tokens:
    """Keys, values, queries and rotation of some columns.

    Attributes:
        keys, values: (B, H_kv, n, D).
        queries: (B, H, n, D) after RoPE.
        rope: rope of these columns.
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
        keys, values, queries = (pick_steps(t, order) for t in (self.keys, self.values, self.queries))
        return Tokens(keys, values, queries, self.rope.gather(order))

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
class IncompleteChunk:
    """Tokens whose chunk is not complete: the first ``counts[row]`` columns of each row."""

    tokens: Tokens
    counts: list[int]


def chunks_of(
    counts: Sequence[int], taken: Sequence[int], host: int | None, own: int | None, is_last: bool
) -> tuple[list[list[Span]], list[int]]:
    """Rows' tokens in the chunks in which each row would be read alone.

    Args:
        counts: number of available tokens per row: those that waited, and new ones.
        taken: number of tokens of this prompt per row that were stored before.
        host: number of tokens that the host reads at once; None: all of them.
        own: number of tokens that a layer reads at once, counted from the beginning of what the host reads at once; or
            None.
        is_last: whether these are the last tokens of this prompt, so that what remains is a chunk.

    Returns:
        The first chunks of all rows, then the second ones, ...: spans of the available tokens, empty where a row has no
        more; and per row, where the tokens begin that must wait.
    """
    rows, ends = [], []
    for count, before in zip(counts, taken, strict=True):
        spans, start = [], 0
        while start < count:
            position = before + start
            block = 0 if host is None else position // host * host
            stops = [block + host] if host is not None else []
            if own is not None:
                stops.append(block + ((position - block) // own + 1) * own)
            stop = min(stops, default=before + count) - before
            if stop > count and not is_last:
                break
            spans.append((start, min(stop, count)))
            start = spans[-1][1]
        rows.append(spans)
        ends.append(start)
    number = max(map(len, rows))
    filled = [spans + [(end, end)] * (number - len(spans)) for spans, end in zip(rows, ends, strict=True)]
    return [list(chunks) for chunks in zip(*filled, strict=True)], ends


def order_of(spans: Sequence[Span], columns: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[bool]]]:
    """Where each row's tokens of a chunk are: (B, m) columns, and (B, m) whether there is one; rows are filled up."""
    width = max(stop - start for start, stop in spans)
    order, real = [], []
    for (start, stop), own in zip(spans, columns, strict=True):
        fill = width - (stop - start)
        order.append([*own[start:stop], *[0] * fill])
        real.append([True] * (stop - start) + [False] * fill)
    return order, real
