"""Data types shared by all layers of the library. Needs torch only.

Symbols: R rows of the batch under consideration, H query heads, H_kv KV heads, D head dimension,
N entries in the view, n queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FREE = 2**31 - 1
"""The position of a slot that holds no entry (int32): later than any query, so that no query attends to it."""

RotaryFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x (R, heads, n, D), cos (R, n, D_rot), sin (R, n, D_rot)) -> rotated x. Linear in x and in (cos, sin)."""


@dataclass(frozen=True)
class Rope:
    """A model's own rotary embedding at n positions.

    Attributes:
        cos, sin: Factors of the rotation (R or 1, n, D_rot), any float dtype, as the model computed them: scaling
            schemes and the attention factor are included. D_rot is what the model's function takes: D, D/2, or
            the rotary part of D.
        apply: Function of the model that rotates; it leaves dimensions beyond the rotary part unchanged.
        table: Number of these cos and sin among those of one forward pass; layers with the same number share them.
    """

    cos: Tensor
    sin: Tensor
    apply: RotaryFn
    table: int = 0

    def of_rows(self, rows: Rows) -> Rope:
        """The rope of some rows of the batch."""
        if self.cos.shape[0] == 1:
            return self
        return Rope(rows.take(self.cos), rows.take(self.sin), self.apply, self.table)

    def steps(self, start: int, stop: int) -> Rope:
        """The rope of the half-open range of steps ``[start, stop)``."""
        return Rope(self.cos[:, start:stop], self.sin[:, start:stop], self.apply, self.table)

    def gather(self, order: Tensor) -> Rope:
        """The rope at per-row step indices: order (R, m) int64 -> cos, sin (R, m, D_rot)."""

        def pick(t: Tensor) -> Tensor:
            t = t.expand(order.shape[0], -1, -1)
            return t.gather(1, order.unsqueeze(-1).expand(-1, -1, t.shape[-1]))

        return Rope(pick(self.cos), pick(self.sin), self.apply, self.table)


@dataclass(frozen=True)
class AttentionParams:
    """How the layer computes a logit from q·k.

    Attributes:
        scaling: Factor on q·k (1/sqrt(D) unless the model has its own).
        softcap: Bound of the logits, which become ``softcap * tanh(logits / softcap)``; None for no bound.
        sinks: Learned logits (H,) that are added to the softmax denominator (gpt-oss), or None.
    """

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class CacheView:
    """The stored entries of one layer, which a policy scores; never a slot beyond them.

    All tensors are views or temporary copies; they are valid until the call that received them returns.

    Attributes:
        keys, values: (R, H_kv, N, D), keys rotated at their original positions.
        positions: (R, H_kv, N) int32, logical position of each entry (0-based, never reset). FREE where a row
            has no entry, which only policies meet that set ``observes_free_slots``.
        now: (R,) int64, logical position of the newest token.
        rope: the model's rope at ``now``, one step.
        params: how the layer computes its logits.
        rows: which rows of the batch these are.
        layers: number of layers whose heads are stacked: H and H_kv count those of all of them.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    now: Tensor
    rope: Rope
    params: AttentionParams
    rows: Rows
    layers: int = 1


@dataclass(frozen=True)
class EvictionEvent:
    """One eviction of one layer, in logical positions. Tensors stay on the cache's device.

    Attributes:
        layer: Index of the layer in the model.
        rows: Rows of the batch that were evicted, in the order of the tensors' first dimension.
        now: Logical position of the newest token, for each of these rows.
        positions: Positions of the entries before the eviction (R, H_kv, N) int32, in slot order.
        scores: Score of each of them (R, H_kv, N) float32.
        kept: Positions that stay (R, H_kv, K) int32, ascending.
        dropped: Positions that were evicted (R, H_kv, N - K) int32, ascending.
        queries: Observation queries that the policy scored with (R, H, m, D) float32, before RoPE; None for policies
            that use none.
    """

    layer: int
    rows: list[int]
    now: list[int]
    positions: Tensor
    scores: Tensor
    kept: Tensor
    dropped: Tensor
    queries: Tensor | None = None


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch: their numbers on the host, and their index on the device.

    Attributes:
        numbers: Row numbers, ascending.
        index: Row numbers (R,) int64 on the device, or None for all rows: the usual case then works on the tensors
            themselves, without a copy, and nothing waits for the device.
    """

    numbers: list[int]
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, tensor: Tensor) -> Tensor:
        """``tensor`` itself for all rows, else a copy of these rows of its first dimension."""
        return tensor if self.index is None else tensor.index_select(0, self.index)

    def put(self, tensor: Tensor, dim: int, start: int, value: Tensor) -> None:
        """Write ``value`` in place into ``[start, start + value.shape[dim])`` of ``dim``, in these rows."""
        target = tensor.narrow(dim, start, value.shape[dim])
        if self.index is None:
            target.copy_(value)
        else:
            target[self.index] = value.to(target.dtype)


def persistent_zeros(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros that can be written to for as long as a cache exists.

    A tensor made under ``torch.inference_mode()`` allows no in-place changes outside of it, and the next forward pass
    may be outside.
    """
    with torch.inference_mode(False):
        return torch.zeros(*shape, dtype=dtype or like.dtype, device=like.device)


def persistent_copy(tensor: Tensor) -> Tensor:
    """A copy in memory of its own that can be written to for as long as a cache exists."""
    with torch.inference_mode(False):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def persistent_rows(tensor: Tensor, index: Tensor) -> Tensor:
    """A persistent copy of rows of the first dimension. index: (B_new,) int64."""
    return persistent_zeros(tensor, index.shape[0], *tensor.shape[1:]).copy_(tensor.index_select(0, index))


def device_index(numbers: list[int], device: torch.device) -> Tensor:
    """(R,) int64 on the device. From pinned memory the copy is queued; from ordinary memory it would wait."""
    index = torch.tensor(numbers, dtype=torch.int64)
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index.to(device)


def group_rows(keys: list, device: torch.device) -> list[tuple[object, Rows]]:
    """Rows of a batch that share a key, in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    if len(groups) == 1:
        return [(key, Rows(numbers)) for key, numbers in groups.items()]
    return [(key, Rows(numbers, device_index(numbers, device))) for key, numbers in groups.items()]
