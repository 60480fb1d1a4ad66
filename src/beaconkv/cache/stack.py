"""Layers that take decode steps together: their heads are stacked in one slab and one policy state.

What a policy does at a step is a few small operations on each KV head. Done layer by layer, most of their time
is the cost of starting them; done once for all layers, it is not. To a policy a stack is a layer with more heads::

    prompt, and any input of several tokens   each layer by itself (unstacked)
    decode steps                              each layer writes its entry and attends to its own heads; when
                                              the last one has, the policy sees all queries at once (stacked)

The slab is allocated once for all layers; a layer by itself works on views of it. What is kept is the same either way.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..types import AttentionParams, Rope, persistent_zeros
from .counts import RowCounts
from .layer import BoundedLayer
from .pending import AttentionInputs
from .slab import EntrySlab, SlabPart


class LayerStack:
    """Bounded layers of one shape, with one policy and one schedule.

    Args:
        layers: fresh; in the order of the model.

    Attributes:
        whole: the layer that holds all heads while the layers are stacked; of a single layer, that layer itself.
    """

    def __init__(self, layers: list[BoundedLayer]) -> None:
        self.layers, first = layers, layers[0]
        self.whole = first
        if len(layers) > 1:
            indices = [layer.index for layer in layers]
            self.whole = BoundedLayer(first.policy, first.schedule, indices, first.on_evict)
        self.reset()

    def reset(self) -> None:
        """Clear all entries, states and counters."""
        for layer in {self.whole, *self.layers}:
            layer.reset()
        self.is_stacked = False
        self._can_stack = len(self.layers) == 1 or self.layers[0].policy.per_head
        self._done = 0  # number of layers that are through the step under way
        self._forget_step()

    def _forget_step(self) -> None:
        """Drop views and buffers of the step, which have the number of rows of that time."""
        self._step = self._queries = self._by_layer = None

    def allocate(self, number: int, keys: Tensor, values: Tensor, prompts: list[int]) -> None:
        """Allocate for one layer, the first time for all: see :meth:`BoundedLayer.allocate`."""
        make_slab = EntrySlab if self.whole is self.layers[0] else partial(self._make_slab, number)
        self.layers[number].allocate(keys, values, prompts, make_slab)

    def _make_slab(self, number: int, keys: Tensor, values: Tensor, slots: int | None) -> EntrySlab:
        """The slab of a layer: a view of the shared one, if it has the shape of the first layer."""
        if self.whole.slab is None:
            self.whole.slab = EntrySlab(keys, values, slots, len(self.layers))
        whole, heads = self.whole.slab, keys.shape[1]
        shapes = [(t.shape[1], t.shape[3], t.dtype, t.device) for t in (keys, values)]
        shared = [(t.shape[1] // len(self.layers), t.shape[3], t.dtype, t.device) for t in (whole.keys, whole.values)]
        if shapes != shared:
            self._can_stack = False
            return EntrySlab(keys, values, slots)
        return SlabPart(whole, slice(number * heads, (number + 1) * heads))

    @property
    def is_allocated(self) -> bool:
        """Whether memory is allocated."""
        return self.layers[0].is_allocated

    @property
    def counted(self) -> list[BoundedLayer]:
        """The objects whose counters add up to those of the stack."""
        return self.layers if self.whole is self.layers[0] else [self.whole, *self.layers]

    @property
    def kv_bytes(self) -> int:
        """Bytes of the allocated keys and values, measured."""
        own = sum(layer.slab.kv_bytes for layer in self.layers if type(layer.slab) is EntrySlab)
        return own if self.whole is self.layers[0] else own + (self.whole.slab.kv_bytes if self.whole.slab else 0)

    def append(self, number: int, keys: Tensor, values: Tensor) -> AttentionInputs:
        """Take in one new entry of every row in one layer: a decode step.

        Args:
            number: index of the layer, within the stack.
            keys, values: (B, H_kv, 1, D), keys after RoPE.

        Returns:
            What the new queries attend to.

        Raises:
            ValueError: shapes that do not fit what is stored.
        """
        layer = self.layers[number]
        layer.require_fit(keys)
        if self._step is None and self._done == 0:
            self._begin()
        if not self.is_stacked:
            return layer.append(keys, values)
        step = self._step
        step.write(number, keys.detach(), values.detach())
        return AttentionInputs(step.keys[number], step.values[number], step.valid)

    def _begin(self) -> None:
        """Begin a step with the first layer: at the first step after a prompt, stack the layers if they can be."""
        self.stack()
        if self.is_stacked:
            self._step = self.whole.slab.begin_step(len(self.layers))
            self.whole.peak_entries = max(self.whole.peak_entries, self.whole.slab.longest)

    def observe(self, number: int, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """Take in the queries of the entries appended last in one layer; after the last layer's, the policy
        sees all of them, and the rows that are full are evicted.

        Args:
            number: index of the layer, within the stack.
            queries: (B, H, 1, D) after RoPE.
            rope: the model's rope of this step.
            params: how the layer computes its logits.
        """
        self._done = (self._done + 1) % len(self.layers)
        is_last = self._done == 0
        if not self.is_stacked:
            self.layers[number].observe(queries, rope, params)
            return
        if self.whole is not self.layers[0]:
            batch, heads, _, dim = queries.shape
            if self._queries is None or self._queries.shape[0] != batch:
                self._queries = persistent_zeros(queries, batch, heads * len(self.layers), 1, dim)
                self._by_layer = self._queries.chunk(len(self.layers), dim=1)
            self._by_layer[number].copy_(queries.detach())
            queries, params = self._queries, self._params
        if is_last:
            self._step = None
            self.whole.observe_step(queries.detach(), rope, params)

    @property
    def keeps_columns(self) -> bool:
        """Whether :meth:`column_positions` is read after steps."""
        return self.whole.keeps_columns

    @keeps_columns.setter
    def keeps_columns(self, value: bool) -> None:
        for layer in (self.whole, *self.layers):
            layer.keeps_columns = value

    def column_positions(self, number: int) -> Tensor:
        """(B, H_kv, N) int32: the tokens behind the entries that one layer attended to in the last decode step, in the
        order in which they stood; -1 where a row had none."""
        layer = self.whole if self.is_stacked else self.layers[number]
        positions = layer.slab.slot_positions() if layer.columns is None else layer.columns
        return positions.chunk(len(self.layers), dim=1)[number] if self.is_stacked else positions

    def begin_compiled(self) -> RowCounts:
        """As all of :meth:`append`, where a compiled step writes the entries itself: they are counted."""
        self.whole.slab.begin_step()
        self.whole.peak_entries = max(self.whole.peak_entries, self.whole.slab.longest)
        return self.whole.slab.counts

    def end_compiled(self, queries: Tensor, rope: Rope) -> None:
        """As all of :meth:`observe`. queries: (B, all H, 1, D)."""
        self.whole.observe_step(queries, rope, self._params)

    def stack(self) -> None:
        """Put the heads of all layers into one state and one counter from now on, if the layers allow it."""
        if self.is_stacked or not self._can_stack or not all(layer.is_allocated for layer in self.layers):
            return
        first = self.layers[0]
        self._params, self.form = first.params, first.form
        if self.whole is not first:
            params = stacked_params([layer.params for layer in self.layers])
            alike = {(layer.rotation, layer.form, layer.capacity) for layer in self.layers}
            counts = [layer.slab.counts for layer in self.layers]
            state = None
            if params is not None and len(alike) == 1 and all(c.state == counts[0].state for c in counts):
                state = type(first.state).stack([layer.state for layer in self.layers])
            if state is None:
                self._can_stack = False
                return
            self.whole.state, self.whole.capacity = state, first.capacity
            for layer in (self.whole, *self.layers):
                layer.slab.counts = counts[0]
            for layer in self.layers:
                layer.state = None
            self._params = params
        self.is_stacked = True

    def unstack(self) -> None:
        """Give each layer its own state and counters again, before an input of several tokens."""
        if not self.is_stacked:
            return
        self.is_stacked = False
        self._forget_step()
        if self.whole is self.layers[0]:
            return
        states = self.whole.state.unstack(len(self.layers))
        for layer, state in zip(self.layers, states, strict=True):
            layer.slab.counts, layer.state = self.whole.slab.counts.clone(), state
        self.whole.state = None

    def select_rows(self, index: Tensor) -> None:
        """Row i becomes what row ``index[i]`` was; the batch may grow or shrink. index: (B_new,) int64."""
        self._forget_step()
        self.stack()
        if self.is_stacked:
            self.whole.select_rows(index)
            return
        if self.whole is not self.layers[0] and self.whole.slab is not None:
            device = self.whole.slab.keys.device
            stored = max(layer.slab.longest for layer in self.layers if layer.is_allocated)
            self.whole.slab.move_rows(index.to(device), stored)
        for layer in self.layers:
            layer.select_rows(index)

    @property
    def state_bytes(self) -> int:
        """Bytes of positions, lengths and the policy's state."""
        own = 0 if self._queries is None else self._queries.nbytes
        return own + sum(layer.state_bytes for layer in ([self.whole] if self.is_stacked else self.layers))

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant is broken. Slow; for tests and idle moments."""
        for layer in [self.whole] if self.is_stacked else self.layers:
            layer.check_integrity()


def stacked_params(params: list[AttentionParams]) -> AttentionParams | None:
    """How the stacked heads of some layers compute their logits; None if layers differ in more than their sinks."""
    first = params[0]
    same = {(p.scaling, p.softcap, p.sinks is None) for p in params}
    if len(same) > 1:
        return None
    sinks = None if first.sinks is None else torch.cat([p.sinks for p in params])
    return AttentionParams(first.scaling, first.softcap, sinks)
