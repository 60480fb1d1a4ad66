"""One attention call on behalf of a bounded layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...cache import AttentionInputs
from ...types import AttentionParams, Rope
from .attention import UnsupportedMask, kernel_mask, run_kernel, run_step
from .host_layer import BoundedCacheLayer
from .reading import HostCut, IncompleteChunk, Tokens, chunks_of, order_of


class CallOwner(Protocol):
    """What a call needs of the cache that made it."""

    cut: HostCut | None
    """How the host cuts the prompt that is being read, if it does."""

    def padding_on_host(self, padding: Tensor) -> Tensor:
        """A padding mask (B, m) on the CPU, fetched once and not once a layer."""

    def note_peak(self, extra_bytes: int = 0) -> None:
        """Record the peak. extra_bytes: bytes of keys and values outside the slabs, during prefill."""

    def rope_on(self, rope: Rope, device: torch.device) -> Rope:
        """The rope on a device, copied once a pass and not once a layer."""


@dataclass(frozen=True)
class LayerCall:
    """What the attention function gets: which layer, its rope, and the cache.

    Attributes:
        host: the layer.
        rope: the model's cos and sin of this call, (B or 1, m, D_rot).
        owner: the cache.
    """

    host: BoundedCacheLayer
    rope: Rope
    owner: CallOwner

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | UnsupportedMask | None,
        kernel: str,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Append, attend, observe, evict.

        Args:
            query: (B, H, m, D) after RoPE.
            key, value: (B, H_kv, m, D), the new entries.
            padding: (B, m) bool from our mask function, True where a token is real; or None.
            kernel: the wrapped attention implementation.
            kwargs: what the module passes to its attention function.

        Returns:
            The output (B, m, H, D), and attention weights if the kernel gives any.

        Raises:
            ValueError: a mask that is not two-dimensional, another batch than the cache's, or a module that
                attends twice.
        """
        layer, num_new, cut = self.host.layer, query.shape[2], self.owner.cut
        if not self.host.is_pending:
            raise ValueError(
                f"{type(module).__name__} (layer {layer.index}) attends twice to one pair of keys and values: "
                "cannot be bounded"
            )
        if isinstance(padding, UnsupportedMask):
            raise ValueError(padding.reason)
        if cut is not None and self.host.num_columns >= cut.columns:
            cut = None  # the prompt is complete
        if num_new == 1 and padding is None and layer.is_allocated and cut is None:
            return self.step(module, query, key, value, kernel, **kwargs)
        self.host.stack.unstack()
        new = Tokens(key, value, query, self.owner.rope_on(self.rope, query.device))
        on_host = None if padding is None else self.owner.padding_on_host(padding)
        if padding is not None:
            padding = padding.to(query.device)
        reader = _Reader(self, module, kernel, kwargs)
        if cut is None and (padding is None or not self._is_cut(num_new)):
            output, weights = reader.whole_pass(new, padding, on_host)
        else:
            output, weights = reader.row_by_row(new, on_host, cut), None
        self.host.attended(num_new)
        return output, weights

    def _is_cut(self, num_new: int) -> bool:
        size = self.host.layer.schedule.prefill_chunk
        return size is not None and size < num_new

    def step(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kernel: str, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`attend` to one new token of each row, none of them padding: a decode step."""
        host = self.host
        host.has_decoded = True
        inputs = host.stack.append(host.number, key, value)
        output, weights = run_step(kernel, module, query, inputs, self.mask(kernel, inputs, query), **kwargs)
        host.note_columns(weights)
        rope = self.owner.rope_on(self.rope, query.device)
        host.stack.observe(host.number, query, rope, self.params(query, kernel, kwargs))
        host.attended(1)
        return output, weights

    def params(self, query: Tensor, kernel: str, kwargs: dict[str, Any]) -> AttentionParams:
        """How the module computes its logits."""
        scaling = kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        sinks = kwargs.get("s_aux")
        softcap = None if kernel == "sdpa" else kwargs.get("softcap")  # transformers 4 passes it on; SDPA ignores it
        return AttentionParams(scaling, softcap, None if sinks is None else sinks.detach())

    def mask(self, kernel: str, inputs: AttentionInputs, queries: Tensor) -> Tensor | None:
        """What the queries see of the entries, in the form the kernel takes."""
        return kernel_mask(kernel, inputs, queries)


@dataclass(frozen=True)
class _Reader:
    """One pass of several tokens, or with padding, through one layer.

    Attributes:
        call: whose pass it is.
        module, kernel, kwargs: see :meth:`LayerCall.attend`.
    """

    call: LayerCall
    module: nn.Module
    kernel: str
    kwargs: dict[str, Any]

    def whole_pass(self, new: Tokens, padding: Tensor | None, on_host: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Chunks by columns: they end at the same column in all rows.

        Args:
            new: the pass.
            padding: (B, m) bool where the entries are, or None.
            on_host: the same on the CPU.
        """
        layer, num_new = self.call.host.layer, new.keys.shape[2]
        size = layer.schedule.prefill_chunk or num_new
        rows = new.keys.shape[0]
        total = [num_new] * rows if on_host is None else on_host.sum(dim=1).tolist()
        self.call.host.prepare(new.keys, new.values, total)
        outputs, weights = [], None
        for start in range(0, num_new, size):
            part = slice(start, min(start + size, num_new))
            real = None if padding is None else padding[:, part]
            counts = total if padding is not None else [part.stop - part.start] * rows
            whole = part.stop - part.start == num_new
            output, weights = self._read_chunk(new.columns(part), real, counts, new.nbytes, whole)
            outputs.append(output)
        return (outputs[0], weights) if len(outputs) == 1 else (torch.cat(outputs, dim=1), None)

    def row_by_row(self, new: Tokens, on_host: Tensor | None, cut: HostCut | None) -> Tensor:
        """Chunks of each row's own tokens. Arguments as :meth:`whole_pass`; ``cut``: how the host cuts the prompt."""
        host, (rows, _, num_new, dim) = self.call.host, new.values.shape
        device = new.keys.device
        waiting, source, before = host.waiting, new, 0
        if waiting is not None:
            source, before = waiting.tokens.followed_by(new), waiting.tokens.keys.shape[2]
        waited = [0] * rows if waiting is None else waiting.counts
        real = torch.ones(rows, num_new, dtype=torch.bool) if on_host is None else on_host
        columns = [
            [*range(count), *(before + column for column in own.nonzero().flatten().tolist())]
            for count, own in zip(waited, real, strict=True)
        ]
        taken = host.taken_of(cut, rows)
        own_size, counts = host.layer.schedule.prefill_chunk, [len(own) for own in columns]
        if cut is None:
            host.prepare(new.keys, new.values, counts)
            chunks, ends = chunks_of(counts, taken, None, own_size, True)
        else:
            is_last = host.num_columns + num_new >= cut.columns
            chunks, ends = chunks_of(counts, taken, cut.size, own_size, is_last)
        output = new.values.new_zeros(rows, num_new, new.queries.shape[1], dim)

        def read(spans: list[tuple[int, int]], is_kept: bool) -> None:
            order, there = order_of(spans, columns)
            counts = [stop - start for start, stop in spans]
            chunk, mask = source.gather(torch.tensor(order, device=device)), torch.tensor(there, device=device)
            if is_kept:
                own = self._read_chunk(chunk, mask, counts, source.nbytes + chunk.nbytes, False)[0]
            else:
                own = self._attend(chunk, host.layer.peek(chunk.keys, chunk.values, mask))[0]
            at = [(r, j, c - before) for r, o in enumerate(order) for j, c in enumerate(o[: counts[r]]) if c >= before]
            if at:  # else all of them have waited, and were answered in the pass before
                row, place, column = (torch.tensor(numbers, device=device) for numbers in zip(*at, strict=True))
                output[row, column] = own[row, place]

        for spans in chunks:
            if cut is not None:
                host.prepare(new.keys, new.values, [stop - start for start, stop in spans], is_prompt=True)
            read(spans, is_kept=True)
        host.take(cut, ends)
        host.waiting = None
        spans = [(end, len(own)) for end, own in zip(ends, columns, strict=True)]
        if any(start < stop for start, stop in spans):
            read(spans, is_kept=False)
            order, _ = order_of(spans, columns)
            counts = [stop - start for start, stop in spans]
            host.waiting = IncompleteChunk(source.gather(torch.tensor(order, device=device)), counts)
        return output

    def _read_chunk(
        self, chunk: Tokens, real: Tensor | None, counts: list[int], whole_bytes: int, note_columns: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Store one chunk, attend, and observe."""
        call, layer = self.call, self.call.host.layer
        inputs = layer.append(chunk.keys, chunk.values, real, counts, in_steps=False)
        output, weights = self._attend(chunk, inputs)
        if note_columns and weights is not None:
            call.host.note_chunk_columns(inputs.keys.shape[2] - chunk.keys.shape[2], real, counts, chunk.keys.shape[2])
        layer.observe(chunk.queries, chunk.rope, call.params(chunk.queries, self.kernel, self.kwargs))
        if chunk.keys.shape[2] > 1:
            call.owner.note_peak(whole_bytes + layer.copied_bytes)
        return output, weights

    def _attend(self, chunk: Tokens, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        mask = self.call.mask(self.kernel, inputs, chunk.queries)
        kwargs = {name: kwarg for name, kwarg in self.kwargs.items() if name not in ("position_ids", "cache_position")}
        return run_kernel(self.kernel, self.module, chunk.queries, inputs.keys, inputs.values, mask, **kwargs)
