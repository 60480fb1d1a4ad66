"""Checks that the views of a layer's cache read what vLLM's own kernels write there. They need no vLLM."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .entries import Views, read, write

Write = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Function (keys (n, H_kv, D), values (n, H_kv, D), a layer's cache, slots (n,) int64) by which a backend stores
entries."""


def is_readable(store: Write, views: Views, cache: Tensor) -> bool:
    """Whether ``views`` read what ``store`` writes, and write the same as it.

    Args:
        store: store of the backend.
        views: views of the layout to be tried.
        cache: (blocks, H_kv, block size, 2 D); its first block is used for the trial, and left as it was.
    """
    _, heads, size, both = cache.shape
    block, before = cache[:1], cache[:1].clone()
    generator = torch.Generator().manual_seed(0)
    shape = size, heads, both // 2
    keys, values = (torch.randn(shape, generator=generator).to(cache) for _ in range(2))
    table, slots = torch.zeros(1, dtype=torch.int64, device=cache.device), torch.arange(size, device=cache.device)
    try:
        block.zero_()
        store(keys, values, cache, slots)
        theirs = block.clone()
        for entries, new in zip(views(cache), (keys, values), strict=True):
            if not torch.equal(read(entries, table, size), new.transpose(0, 1)):
                return False
        block.zero_()
        for entries, new in zip(views(cache), (keys, values), strict=True):
            write(entries, table, slots.expand(heads, -1), new.transpose(0, 1))
        return torch.equal(block, theirs)
    finally:
        block.copy_(before)


def require_readable(
    name: str, backend: str, store: Write, views: Views, cache: Tensor, shape: tuple[int, ...]
) -> None:
    """Raise ``ValueError`` unless a layer's cache can be read.

    Args:
        name, backend: names of the layer and of its attention backend, for the message.
        store, views, cache: see :func:`is_readable`.
        shape: (H_kv, block size, 2 D) that the cache of each block should have.
    """
    if tuple(cache.shape[1:]) != shape:
        found = f"has blocks of {tuple(cache.shape[1:])}, and not of (KV heads, block size, 2 D) = {shape}"
    elif not is_readable(store, views, cache):
        found = f"has blocks of {shape} {cache.dtype} that its kernels lay out in a way that is not supported"
    else:
        return
    raise ValueError(
        f"{name}: the cache of vLLM's {backend} {found}. A bounded cache would read other entries than were stored: "
        "choose another --attention-backend or --block-size"
    )
