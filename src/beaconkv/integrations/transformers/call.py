"""One attention call on behalf of a bounded layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...cache import AttentionInputs
from ...types import AttentionParams, Rope
from .attention import kernel_mask, run_kernel, run_step
from .host_layer import BoundedCacheLayer


@dataclass(frozen=True)
class LayerCall:
    """What the attention function gets: which layer, its rope, and the padding on the host.

    Attributes:
        host: the layer.
        rope: the model's cos and sin of this call, (B or 1, m, D_rot).
        on_host: gives a padding mask (B, m) on the CPU, fetched once and not once a layer.
        note_peak: told how many bytes of keys and values exist beside the slabs during prefill.
    """

    host: BoundedCacheLayer
    rope: Rope
    on_host: Callable[[Tensor], Tensor]
    note_peak: Callable[[int], None]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
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
        layer, num_new = self.host.layer, query.shape[2]
        if not self.host.is_pending:
            raise ValueError(
                f"{type(module).__name__} (layer {layer.index}) attends twice to one pair of keys and values: "
                "cannot be bounded"
            )
        if num_new == 1 and padding is None and layer.is_open:
            return self.step(module, query, key, value, kernel, **kwargs)
        self.host.stack.part()
        on_host = None if padding is None else self.on_host(padding)
        padding = None if padding is None else padding.to(query.device)

        def counts(part: slice) -> list[int]:
            if on_host is None:
                return [part.stop - part.start] * key.shape[0]
            return on_host[:, part].sum(dim=1).tolist()

        params, rope = self._params(query, kernel, kwargs), self._rope(query)
        self.host.prepare(key, value, counts(slice(0, num_new)))
        size = layer.schedule.prefill_chunk or num_new
        if num_new > size:
            kwargs = {name: kwarg for name, kwarg in kwargs.items() if name not in ("position_ids", "cache_position")}
        outputs, weights = [], None
        for start in range(0, num_new, size):
            part = slice(start, min(start + size, num_new))
            real = None if padding is None else padding[:, part]
            inputs = layer.append(key[:, :, part], value[:, :, part], real, counts(part))
            queries = query[:, :, part]
            mask = self.mask(kernel, inputs, queries)
            output, weights = run_kernel(kernel, module, queries, inputs.keys, inputs.values, mask, **kwargs)
            layer.observe(queries, rope.steps(part.start, part.stop), params)
            outputs.append(output)
            if num_new > 1:
                whole = key.nbytes + value.nbytes
                self.note_peak(whole + layer.copied_bytes)
        self.host.attended(num_new)
        return (outputs[0], weights) if len(outputs) == 1 else (torch.cat(outputs, dim=1), None)

    def step(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kernel: str, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`attend` to one new token of each row, none of them padding: a decode step."""
        host = self.host
        host.has_decoded = True
        inputs = host.stack.append(host.number, key, value)
        output = run_step(kernel, module, query, inputs, self.mask(kernel, inputs, query), **kwargs)
        host.stack.observe(host.number, query, self._rope(query), self._params(query, kernel, kwargs))
        host.attended(1)
        return output

    def _params(self, query: Tensor, kernel: str, kwargs: dict[str, Any]) -> AttentionParams:
        scaling = kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        sinks = kwargs.get("s_aux")
        softcap = (
            None if kernel == "sdpa" else kwargs.get("softcap")
        )  # transformers 4 passes it on, and SDPA ignores it
        return AttentionParams(scaling, softcap, None if sinks is None else sinks.detach())

    def _rope(self, query: Tensor) -> Rope:
        return Rope(self.rope.cos.to(query.device), self.rope.sin.to(query.device), self.rope.apply)

    def mask(self, kernel: str, inputs: AttentionInputs, queries: Tensor) -> Tensor | None:
        """What the queries see of the entries, in the form the kernel takes."""
        return kernel_mask(kernel, inputs, queries)
