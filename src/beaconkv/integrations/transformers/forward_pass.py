"""The forward pass under way on one cache, and what the cache was shown by those before it.

A pass is half done between the first layer that stores entries and the last one that is evicted. Whether a cache is in
that state is decided here and nowhere else (:meth:`ForwardPass.require_whole`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ...types import Rope
from .continuation import PassInput, SeenColumns
from .host_layer import BoundedCacheLayer
from .reading import HostCut


class ForwardPass:
    """State of one pass; what the next pass has to continue is kept until then.

    Args:
        hosts: the bounded layers of the cache.
        layers: all layers of the cache, a list that it may change.

    Attributes:
        columns: token ids, padding and positions that the cache was shown.
        cut: how the host cuts the prompt that is being read; None where it does not.
        prompt_columns: number of columns of the prompt that ``generate`` is about to read; None between two calls.
        is_broken: whether a pass broke off after entries were stored.
    """

    def __init__(self, hosts: Sequence[BoundedCacheLayer], layers: Sequence[CacheLayerMixin]) -> None:
        self.hosts, self.layers = hosts, layers
        self.reset()

    def reset(self) -> None:
        """Clear everything."""
        self.columns = SeenColumns()
        self.cut: HostCut | None = None
        self.prompt_columns: int | None = None
        self.is_broken = False
        self._forget_pass()

    def _forget_pass(self) -> None:
        self._under_way: tuple[PassInput | None, int] | None = None  # its input, and the columns before it
        self._ropes: list[Rope] = []  # each pair of cos and sin once
        self._moved: dict[tuple[int, torch.device], Rope] = {}  # those, on other devices
        self._padding: tuple[Tensor, Tensor] | None = None  # the mask, on its device and on the host

    def __deepcopy__(self, memo: dict[int, Any]) -> ForwardPass:
        """The same state between two passes, for a copy of the cache: nothing of the pass under way."""
        copy = object.__new__(type(self))
        memo[id(self)] = copy
        own = ("hosts", "layers", "columns", "cut", "prompt_columns", "is_broken")
        copy.__dict__.update({name: deepcopy(getattr(self, name), memo) for name in own})
        if copy.hosts[0].waiting is None:
            copy.cut = None
        copy._forget_pass()
        return copy

    @property
    def num_columns(self) -> int:
        """Number of columns that the cache was fed so far, padding included."""
        return self.hosts[0].num_columns

    def begin(self, given: PassInput | None) -> None:
        """A pass begins.

        Args:
            given: its input; None where the arguments bring no tokens.

        Raises:
            ValueError: input that does not continue what the cache holds.
            RuntimeError: as :meth:`require_whole`.
        """
        columns, host = self.num_columns, self.hosts[0]
        if self.cut is not None and not (given is None or self.cut.expects(given.num_new, columns)):
            self.cut = None  # generate() broke it off
        self.require_whole()
        if given is not None:
            given.require_fit()
            if self.cut is not None and columns < self.cut.columns:
                self.columns.require_own_positions(given, columns, self._tokens_seen(given.rows))
            if host.layer.is_allocated and host.waiting is None:
                slab = host.layer.slab
                self.columns.require_continues(given, columns, slab.num_seen, slab.num_seen_on_device)
        self._under_way = given, columns

    def _tokens_seen(self, rows: int) -> list[int]:
        """Per row, number of tokens so far, those included that wait for the rest of their chunk."""
        host = self.hosts[0]
        seen = host.layer.slab.num_seen if host.layer.is_allocated else [0] * rows
        waiting = [0] * len(seen) if host.waiting is None else host.waiting.counts
        return [count + more for count, more in zip(seen, waiting, strict=True)]

    def end(self, broken: bool, has_host_layers: bool) -> bool:
        """A pass ends.

        Args:
            broken: it was left by an exception.
            has_host_layers: the cache has layers that it does not bound, and that do not count what they store.

        Returns:
            False if the model did not use the cache.
        """
        given, columns = self._under_way
        self._forget_pass()
        advanced = any(host.num_columns != columns for host in self.hosts)
        if broken:  # entries were stored, or may have been where layers do not count
            self.is_broken |= advanced or has_host_layers
        if broken or given is None:
            return True
        if self.num_columns == columns:
            return False
        self.columns.take(given, columns)
        return True

    def note_compiled_step(self, ids: Tensor) -> None:
        """A compiled step has taken in ids (B, 1)."""
        self.columns.take(PassInput(ids.shape[0], 1, ids, None, None), self.num_columns - 1)

    def expect_prompt(self, prefill_chunk: int | None) -> None:
        """``generate`` is about to read a prompt, which it cuts into chunks of this many columns, or does not cut."""
        known = prefill_chunk is not None and self.prompt_columns is not None
        self.cut = HostCut(prefill_chunk, self.prompt_columns) if known else None

    def require_text(self, ids: Tensor | None, length: int, mask: Tensor | None) -> None:
        """Raise unless a text continues what the cache was shown; see :class:`ContinuedCache`."""
        columns = self.num_columns
        if columns:
            self.require_whole()
        covered = length if mask is None else mask.shape[1]
        if columns and covered <= length:  # else only the new tokens were passed
            self.columns.require_text(ids, length, columns)
        self.prompt_columns = max(covered, length)

    def require_whole(self) -> None:
        """Raise ``RuntimeError`` if the layers hold a part of a pass."""
        columns = {layer.get_seq_length() for layer in self.layers if hasattr(layer, "get_seq_length")}
        waits = self.cut is None and self.hosts[0].waiting is not None
        if self.is_broken or len(columns) > 1 or waits or any(host.is_pending for host in self.hosts):
            raise RuntimeError(
                "a forward pass on this cache broke off between two layers or after them, or a model other than its "
                "own was run with it; make a new cache or reset() it"
            )

    def rope(self, rope: Rope) -> Rope:
        """The rope of one call, numbered by its cos and sin among those of the pass."""
        for known in self._ropes:
            if known.cos is rope.cos and known.sin is rope.sin:
                break
        else:
            known = Rope(rope.cos, rope.sin, rope.apply, len(self._ropes))
            self._ropes.append(known)
        return known if known.apply is rope.apply else Rope(known.cos, known.sin, rope.apply, known.table)

    def rope_on(self, rope: Rope, device: torch.device) -> Rope:
        """The rope on a device, copied once a pass and not once a layer."""
        if rope.cos.device == device:
            return rope
        key = rope.table, device
        if key not in self._moved:
            self._moved[key] = Rope(rope.cos.to(device), rope.sin.to(device), rope.apply, rope.table)
        moved = self._moved[key]
        return Rope(moved.cos, moved.sin, rope.apply, rope.table)

    def padding_on_host(self, padding: Tensor) -> Tensor:
        """(rows, tokens) bool: the padding mask on the CPU, fetched once a pass and not once a layer.

        Raises:
            ValueError: a mask that is not two-dimensional.
        """
        if padding.ndim != 2:
            raise ValueError(
                f"a BoundedCache takes a 2-D attention mask (rows, tokens); got {padding.ndim}-D {tuple(padding.shape)}"
            )
        if self._padding is None or self._padding[0] is not padding:
            self._padding = padding, padding.cpu()
        return self._padding[1]
