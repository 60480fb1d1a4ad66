"""What is counted for the rows of a batch: on the host, where decisions are made, and on the device."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from ..schedule import EvictionSchedule
from ..types import Rows, persistent_rows, persistent_zeros
from .progress import Progress

UNBOUNDED = EvictionSchedule(None)


class RowCounts:
    """The counters of a batch.

    Args:
        entries: any tensor (B, ...) on the device of the entries.

    Attributes:
        rows: one counter for each row; they begin without a budget and without a prompt.
        lengths_on_device: (B,) int64, entries stored, where the entries are.
        num_seen_on_device: (B,) int32, tokens seen, likewise.
    """

    def __init__(self, entries: Tensor) -> None:
        batch = entries.shape[0]
        self.rows = [Progress(UNBOUNDED, 0) for _ in range(batch)]
        self.lengths_on_device = persistent_zeros(entries, batch, dtype=torch.int64)
        self.num_seen_on_device = persistent_zeros(entries, batch, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.lengths_on_device.nbytes + self.num_seen_on_device.nbytes

    @property
    def state(self) -> list[tuple[int | None, ...]]:
        """Everything that the host counts; equal where the rows of two layers are in the same state."""
        return [row.state for row in self.rows]

    def clone(self) -> RowCounts:
        """The same counts, counted on independently."""
        own = copy(self)
        own.rows = [row.copy() for row in self.rows]
        with torch.inference_mode(False):
            own.lengths_on_device = self.lengths_on_device.clone()
            own.num_seen_on_device = self.num_seen_on_device.clone()
        return own

    def step(self) -> None:
        """Count one new token and its entry in every row: a decode step."""
        for row in self.rows:
            row.store(1)
            row.end_step()
        self.lengths_on_device.add_(1)
        self.num_seen_on_device.add_(1)

    def store(self, rows: Rows, tokens: int) -> int:
        """Count the entries of a chunk in rows in the same state; returns the number that fits before an eviction."""
        left = 0
        for number in rows.numbers:
            self.rows[number].store(tokens)
            left = self.rows[number].end_chunk()
        for counted in (self.lengths_on_device, self.num_seen_on_device):
            if rows.index is None:
                counted.add_(tokens)
            else:
                counted[rows.index] += tokens
        return left

    def settle(self, rows: Rows) -> None:
        """Count the eviction that was due in rows in the same state: it has been carried out."""
        for number in rows.numbers:
            self.rows[number].settle()
        length = self.rows[rows.numbers[0]].stored
        if rows.index is None:
            self.lengths_on_device.fill_(length)
        else:
            self.lengths_on_device[rows.index] = length

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        """Row i becomes what row ``index[i]`` was. index (B_new,) int64, and ``numbers`` on the host."""
        self.lengths_on_device = persistent_rows(self.lengths_on_device, index)
        self.num_seen_on_device = persistent_rows(self.num_seen_on_device, index)
        self.rows = [self.rows[number].copy() for number in numbers]
