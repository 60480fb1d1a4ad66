"""Several new tokens of each row: attended to behind what is stored, and stored only when their queries were seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import CacheView, Rope, Rows
from .slab import EntrySlab


@dataclass(frozen=True)
class AttentionInputs:
    """What m new queries attend to.

    Attributes:
        keys, values: (B, H_kv, N, D); for m > 1 the last m entries are the new tokens themselves.
        valid: (B, N) bool, entries that exist, or None when all do. The order within the new tokens
            (each sees itself and earlier ones) is left to the host.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor | None


def inputs_behind(slab: EntrySlab, keys: Tensor, values: Tensor, real: Tensor | None) -> AttentionInputs:
    """The entries stored, and new ones behind them. keys, values (B, H_kv, m, D); real (B, m) bool, or None."""
    stored = slab.longest
    if stored == 0:
        return AttentionInputs(keys, values, real)
    valid = slab.valid(stored)
    if valid is not None or real is not None:
        old = valid if valid is not None else real.new_ones(real.shape[0], stored)
        new = real if real is not None else valid.new_ones(valid.shape[0], keys.shape[2])
        valid = torch.cat([old, new], dim=1)
    keys = torch.cat([slab.keys[:, :, :stored], keys], dim=2)
    return AttentionInputs(keys, torch.cat([slab.values[:, :, :stored], values], dim=2), valid)


@dataclass(frozen=True)
class PendingChunk:
    """A chunk that was attended to and is not stored yet.

    Attributes:
        inputs: the ``stored`` slots there were, and the new entries behind them.
        stored: number of entries of the fullest row before the chunk.
        real: (B, m) bool, False where a token is padding; None when none is.
        counts: number of real tokens per row.
    """

    inputs: AttentionInputs
    stored: int
    real: Tensor | None
    counts: list[int]

    def of_rows(self, slab: EntrySlab, rows: Rows, queries: Tensor, rope: Rope) -> PendingRows:
        """The chunk of rows in the same state and with equally many real tokens, without padding.

        Args:
            slab: where the entries will be stored; the chunk is not counted there yet.
            rows: which rows.
            queries: (B, H, m, D) of all rows, after RoPE.
            rope: rope of all rows, m steps.
        """
        first = rows.numbers[0]
        count, stored, seen = self.counts[first], slab.counts.rows[first].stored, slab.counts.rows[first].seen
        both = [rows.take(t) for t in (self.inputs.keys, self.inputs.values)]
        queries, rope = rows.take(queries), rope.of_rows(rows)
        new = [t[:, :, self.stored :] for t in both]
        is_padded = count < new[0].shape[2]
        if is_padded:
            order = (~rows.take(self.real)).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
            new, queries, rope = [pick_steps(t, order) for t in new], pick_steps(queries, order), rope.gather(order)
        positions = torch.arange(seen, seen + count, dtype=torch.int32, device=queries.device)
        positions = positions.expand(*new[0].shape[:2], -1)
        whole = None if is_padded or stored < self.stored else both
        return PendingRows(slab, rows, *new, positions, queries, rope, stored, whole)


@dataclass(frozen=True)
class PendingRows:
    """A chunk of rows in the same state, without its padding.

    Attributes:
        slab: where it will be stored.
        rows: which rows.
        keys, values: (R, H_kv, c, D), the new entries.
        positions: (R, H_kv, c) int32.
        queries: (R, H, c, D) after RoPE.
        rope: rope of the c tokens.
        stored: number of entries that each row held before.
        whole: keys and values, (R, H_kv, stored + c, D), where they are already behind each other; else None.
    """

    slab: EntrySlab
    rows: Rows
    keys: Tensor
    values: Tensor
    positions: Tensor
    queries: Tensor
    rope: Rope
    stored: int
    whole: list[Tensor] | None

    def store(self) -> None:
        """Write the entries into the slab, where they were counted."""
        self.slab.append_chunk(self.rows, self.keys, self.values, self.positions)

    def entries(self) -> tuple[list[Tensor], int]:
        """Keys, values and positions of all entries, stored and new; and the bytes that were copied for it."""
        slab, rows, whole, copied = self.slab, self.rows, self.whole, 0
        if whole is None:
            whole = [
                torch.cat([rows.take(slab_part)[:, :, : self.stored], new], dim=2)
                for slab_part, new in ((slab.keys, self.keys), (slab.values, self.values))
            ]
            copied = sum(t.nbytes for t in whole)
        return [*whole, torch.cat([rows.take(slab.positions)[:, :, : self.stored], self.positions], dim=2)], copied

    def retain(self, view: CacheView, keep: Tensor) -> Tensor:
        """Store what stays of all entries; see :class:`~.eviction.EntryStore`."""
        return self.slab.replace(view, keep)


def pick_steps(tensor: Tensor, order: Tensor) -> Tensor:
    """Steps of each row's own choice. tensor (R, heads, m, D), order (R, c) int64 -> (R, heads, c, D), a copy."""
    index = order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[-1])
    return tensor.gather(2, index)
