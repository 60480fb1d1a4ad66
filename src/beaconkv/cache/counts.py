"""What is counted for each row of a batch: on the host, where decisions are made, and on the device."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from ..types import Rows, persistent_rows, persistent_zeros


class RowCounts:
    """Counts of a batch, all zero at first.

    Args:
        entries: any tensor (B, ...) where the entries are.

    Attributes:
        lengths: per row, entries stored.
        num_seen: per row, tokens seen: the next logical position.
        prompts: per row, tokens of the prompt.
        num_evictions: per row.
        lengths_on_device: (B,) int64, the same where the entries are.
        num_seen_on_device: (B,) int32, likewise.
    """

    def __init__(self, entries: Tensor) -> None:
        batch = entries.shape[0]
        self.lengths, self.num_seen = [0] * batch, [0] * batch
        self.prompts, self.num_evictions = [0] * batch, [0] * batch
        self.lengths_on_device = persistent_zeros(entries, batch, dtype=torch.int64)
        self.num_seen_on_device = persistent_zeros(entries, batch, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.lengths_on_device.nbytes + self.num_seen_on_device.nbytes

    def on_host(self) -> tuple[list[int], ...]:
        """All that the host counts; equal where rows of two layers stand alike."""
        return self.lengths, self.num_seen, self.prompts, self.num_evictions

    def clone(self) -> RowCounts:
        """The same counts, counted on independently."""
        own = copy(self)
        own.lengths, own.num_seen, own.prompts, own.num_evictions = (list(numbers) for numbers in self.on_host())
        with torch.inference_mode(False):
            own.lengths_on_device = self.lengths_on_device.clone()
            own.num_seen_on_device = self.num_seen_on_device.clone()
        return own

    def step(self) -> None:
        """One new token in every row, stored."""
        self.lengths = [n + 1 for n in self.lengths]
        self.num_seen = [n + 1 for n in self.num_seen]
        self.lengths_on_device.add_(1)
        self.num_seen_on_device.add_(1)

    def saw(self, rows: Rows, tokens: int) -> None:
        """Tokens that came in a chunk, stored or not."""
        for row in rows.numbers:
            self.num_seen[row] += tokens
        if rows.index is None:
            self.num_seen_on_device.add_(tokens)
        else:
            self.num_seen_on_device[rows.index] += tokens

    def hold(self, rows: Rows, length: int) -> None:
        """These rows now hold so many entries."""
        for row in rows.numbers:
            self.lengths[row] = length
        if rows.index is None:
            self.lengths_on_device.fill_(length)
        else:
            self.lengths_on_device[rows.index] = length

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        """Row i becomes what row ``index[i]`` was. index (B_new,) int64, and ``numbers`` on the host."""
        self.lengths_on_device = persistent_rows(self.lengths_on_device, index)
        self.num_seen_on_device = persistent_rows(self.num_seen_on_device, index)
        for name in ("lengths", "num_seen", "prompts", "num_evictions"):
            setattr(self, name, [getattr(self, name)[row] for row in numbers])

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` where host and device disagree. Slow."""
        assert self.lengths_on_device.tolist() == self.lengths, (self.lengths_on_device.tolist(), self.lengths)
        assert self.num_seen_on_device.tolist() == self.num_seen, (self.num_seen_on_device.tolist(), self.num_seen)
