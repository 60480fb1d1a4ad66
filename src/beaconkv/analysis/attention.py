"""The full cache's attention over a trace, computed for some queries at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .trace import Trace

ELEMENTS = 1 << 22
"""Number of probabilities that exist at once, about: 16 MiB of float32, nearly the size of a processor's cache."""


def attention_blocks(
    trace: Trace, layer: int, start: int = 0, stop: int | None = None, cuts: tuple[int, ...] = ()
) -> Iterator[tuple[int, Tensor]]:
    """Attention of queries ``[start, stop)`` of one layer, block after block.

    Args:
        cuts: Positions of queries at which a block must begin.

    Yields:
        The position of the first query of a block, and (H_kv, G, n, N) float32 probabilities, where entry j is the
        token at position j and N is the position of the block's last query plus one.
    """
    stop = len(trace) if stop is None else stop
    keys, params = trace.keys(layer), trace.params(layer)
    order = torch.arange(len(trace), dtype=torch.int32)
    bounds = sorted({*(cut for cut in cuts if start < cut < stop), stop})
    at = start
    for bound in bounds:
        while at < bound:
            size = max(1, min(bound - at, 64, ELEMENTS // (trace.info.num_heads * bound)))
            end = at + size
            held = order[:end].expand(1, keys.shape[1], -1)
            queries = trace.queries(layer, at, end)
            yield at, ops.attention_weights(queries, keys[:, :, :end], params, order[at:end].unsqueeze(0), held)[0]
            at = end
