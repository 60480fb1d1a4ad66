"""Columns that a cache was shown, and whether further input continues them.

A column is a place in the input of the host: a token, or padding. A cache that is given another text would go on from
the entries of the first one without a sign of it, so every forward pass is compared with what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import persistent_copy, persistent_rows, persistent_zeros

CURE = "make a new cache or reset() this one"
BLOCK = 1024
"""Columns of decode steps whose token ids are allocated at a time."""
UNKNOWN = -1
"""In place of a token id where the host was given embeddings."""


@dataclass(frozen=True)
class PassInput:
    """Input of one forward pass of the host.

    Attributes:
        rows: number of rows, B.
        num_new: number of new columns.
        ids: (B, num_new) int64, or None where the host was given embeddings.
        mask: (B, columns) attention mask of two dimensions, or None.
        positions: (B or 1, num_new) position_ids, or None; those of M-RoPE, which may repeat or decrease where
            pictures are, say nothing about the text.
    """

    rows: int
    num_new: int
    ids: Tensor | None
    mask: Tensor | None
    positions: Tensor | None

    @classmethod
    def of_call(cls, arguments: dict) -> PassInput | None:
        """From the keyword arguments of a model; None if they contain no tokens."""
        ids, embeds = arguments.get("input_ids"), arguments.get("inputs_embeds")
        tokens = ids if isinstance(ids, Tensor) else embeds
        if not isinstance(tokens, Tensor) or tokens.ndim < 2:
            return None
        mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
        return cls(
            *tokens.shape[:2],
            ids if isinstance(ids, Tensor) and ids.ndim == 2 else None,
            mask if isinstance(mask, Tensor) and mask.ndim == 2 else None,
            positions if isinstance(positions, Tensor) and positions.ndim == 2 else None,
        )

    def require_fit(self) -> None:
        """Raise ``ValueError`` for a mask of other rows; one row of ones is accepted for all rows."""
        if self.mask is None or self.mask.shape[0] == self.rows:
            return
        if self.mask.shape[0] > 1 or not self.mask.all():
            raise ValueError(f"the attention mask has {self.mask.shape[0]} rows for a batch of {self.rows}")


class SeenColumns:
    """Token ids and padding of all columns a cache was shown.

    Token ids stay on their device and are read only where a whole text is compared; a decode step writes its own id and
    nothing else.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Clear everything."""
        self._blocks: list[Tensor] = []  # (B, n) int64 each: the first self._num columns of all of them together
        self._num = 0
        self._real: Tensor | None = None  # (B, n) bool on the host: columns up to the last pass of several tokens
        self._last: list[int] | None = None  # highest position of each row in such a pass

    def require_continues(self, given: PassInput, columns: int, seen: Sequence[int], seen_on_device: Tensor) -> None:
        """Compare a pass with what came before it.

        Args:
            given: the pass.
            columns: that the cache was shown before.
            seen: per row, tokens among them.
            seen_on_device: (B,) the same, where the cache is.

        Raises:
            ValueError: a mask that hides tokens which are cached, or shows padding; positions before
                those already seen.
        """
        if columns and given.mask is not None and given.mask.shape[1] >= columns + given.num_new:
            self._check_mask(given, columns, seen, seen_on_device)
        if columns and given.num_new > 1:
            first = _extreme(given, columns, torch.Tensor.amin)
            if first is not None and self._last is not None and len(first) in (1, len(self._last)):
                firsts = first * len(self._last) if len(first) == 1 else first
                for row, (new, last) in enumerate(zip(firsts, self._last, strict=True)):
                    if new is not None and last is not None and new <= last:
                        raise ValueError(
                            f"row {row}: this input begins at position {new}, but the cache has already seen position "
                            f"{last}: it does not continue that text (another text, the same prompt again, or "
                            f"use_cache=False); {CURE}"
                        )

    @staticmethod
    def require_own_positions(given: PassInput, columns: int, seen: Sequence[int]) -> None:
        """Compare the positions that the host gives to the tokens of a prompt which it cuts with their number.

        Args:
            given: the pass.
            columns: that came before it.
            seen: per row, tokens among them.

        Raises:
            ValueError: rows with padding have the positions of columns, as transformers 4.57 gives them.
        """
        if given.mask is None or given.positions is None or given.mask.all():
            return
        first = _extreme(given, columns, torch.Tensor.amin)
        if first is None or len(first) != len(seen):
            return
        for row, (new, count) in enumerate(zip(first, seen, strict=True)):
            if new is not None and new != count:
                raise ValueError(
                    f"row {row}: this release of transformers gives position {new} to token {count} of a padded row "
                    "when it cuts a prompt (prefill_chunk_size), with any cache: use BoundedCache(..., "
                    "prefill_chunk=...) instead, or a newer release"
                )

    def _check_mask(self, given: PassInput, columns: int, seen: Sequence[int], seen_on_device: Tensor) -> None:
        mask = given.mask[:, :columns]
        if mask.shape[0] not in (1, len(seen)):
            return  # another batch: refused when it is stored
        if given.num_new > 1:
            mask = mask.bool().cpu().expand(len(seen), -1)
            known = torch.ones_like(mask)
            if self._real is not None:
                known[:, : self._real.shape[1]] = self._real
            same = torch.equal(mask, known)
        elif mask.device.type == "cpu":
            same = mask.bool().sum(dim=1).expand(len(seen)).tolist() == list(seen)
        else:  # a decode step must not wait for the device
            counted = mask.bool().sum(dim=1) == seen_on_device.to(mask.device)
            torch._assert_async(counted.all(), "the attention mask hides tokens that a BoundedCache holds")
            return
        if not same:
            raise ValueError(
                "this attention mask differs from that of earlier passes in columns that the cache has already seen: "
                "tokens that are cached cannot be hidden, nor padding be shown, since entries are evicted for all "
                f"later queries alike; leave these columns as they were, or {CURE}"
            )

    def take(self, given: PassInput, columns: int) -> None:
        """Remember a pass that follows ``columns`` others."""
        rows = given.rows
        padded_step = given.num_new == 1 and given.mask is not None and given.mask.device.type == "cpu"
        if given.num_new > 1 or columns == 0 or (padded_step and not given.mask[:, columns : columns + 1].all()):
            real = torch.ones(rows, columns + given.num_new, dtype=torch.bool)
            if given.mask is not None and given.mask.shape[1] >= real.shape[1]:
                real = given.mask[:, : real.shape[1]].bool().cpu().expand(rows, -1).clone()
            elif self._real is not None:
                real[:, : self._real.shape[1]] = self._real
            self._real = real
            last = _extreme(given, columns, torch.Tensor.amax)
            if last is not None:
                self._last = last * rows if len(last) == 1 else last
        if columns > self._num:
            self._write_ids(torch.full((rows, columns - self._num), UNKNOWN))
        ids = torch.full((rows, given.num_new), UNKNOWN) if given.ids is None else given.ids
        self._write_ids(ids)

    def _write_ids(self, ids: Tensor) -> None:
        """ids: (B, n) integers."""
        free = sum(block.shape[1] for block in self._blocks) - self._num
        if ids.shape[1] == 1 and self._num:
            if free == 0:
                self._blocks.append(persistent_zeros(ids, ids.shape[0], BLOCK, dtype=torch.int64))
                free = BLOCK
            self._blocks[-1].select(1, BLOCK - free).copy_(ids[:, 0])
        else:
            if free:
                self._blocks[-1] = persistent_copy(self._blocks[-1][:, : BLOCK - free])
            self._blocks.append(persistent_copy(ids.long()))
        self._num += ids.shape[1]

    def require_text(self, ids: Tensor | None, length: int, columns: int) -> None:
        """Compare a whole text, the new tokens at its end, with what the cache was shown.

        Args:
            ids: (B, length) int64, or None if the host was given embeddings.
            length: length of the text.
            columns: that the cache was shown.

        Raises:
            ValueError: the text is not longer than that, or differs in a token.
        """
        if length <= columns:
            raise ValueError(
                f"the cache has already seen {columns} tokens, and this text has {length}: it does not continue what "
                f"the cache holds (another text, or the same prompt again); {CURE}"
            )
        if ids is None or not self._blocks:
            return
        seen = torch.cat([block.cpu() for block in self._blocks], dim=1)[:, : min(self._num, columns)]
        if seen.shape[0] % ids.shape[0]:
            return  # another batch: refused when it is stored
        ids = ids[:, : seen.shape[1]].cpu().repeat_interleave(seen.shape[0] // ids.shape[0], dim=0)
        differs = (ids != seen) & (seen != UNKNOWN)
        if self._real is not None:
            known = min(self._real.shape[1], seen.shape[1])
            differs[:, :known] &= self._real[:, :known]
        if differs.any():
            row, column = differs.nonzero()[0].tolist()
            raise ValueError(
                f"this text does not continue what the cache holds: token {column} of row {row} is "
                f"{int(ids[row, column])}, and the cache has seen {int(seen[row, column])} there (another text, a chat "
                f"template that changes earlier turns, or other tokens at a seam); {CURE}"
            )

    def select_rows(self, index: Tensor) -> None:
        """Row i becomes what row ``index[i]`` was. index: (B_new,) int64."""
        if self._blocks:
            self._blocks = [persistent_rows(block, index.to(block.device)) for block in self._blocks]
        if self._real is not None or self._last is not None:
            if self._real is not None and _alike(self._real, self._last):
                numbers = [0] * index.shape[0]  # so that no step of beam search waits for the device
            else:
                numbers = index.tolist()
            self._real = None if self._real is None else self._real[numbers]
            self._last = None if self._last is None else [self._last[row] for row in numbers]


def _alike(real: Tensor, last: Sequence[int | None] | None) -> bool:
    return bool((real == real[:1]).all()) and (last is None or len(set(last)) == 1)


def _extreme(given: PassInput, columns: int, reduce) -> list[int | None] | None:
    """Per row, the lowest or highest position of its real tokens; None where a row has none, or all are unknown."""
    if given.positions is None or given.positions.is_floating_point():
        return None
    positions = given.positions.detach().cpu()
    if positions.shape[1] != given.num_new:
        return None
    if given.mask is None or given.mask.shape[1] < columns + given.num_new:
        return reduce(positions, 1).tolist()
    real = given.mask[:, columns : columns + given.num_new].bool().cpu()
    rows = max(real.shape[0], positions.shape[0])
    real, positions = real.expand(rows, -1), positions.expand(rows, -1)
    return [int(reduce(own[kept], 0)) if kept.any() else None for own, kept in zip(positions, real, strict=True)]
