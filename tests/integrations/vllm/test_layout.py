"""The trial of a cache's layout, with kernels that write it and with readers of another one."""

import pytest
import torch

from beaconkv.integrations.vllm.entries import half_by_half, side_by_side
from beaconkv.integrations.vllm.layout import is_readable, require_readable

from .engine import needs_vllm

BLOCKS, HEADS, SIZE, DIM = 3, 2, 32, 64


def store_side_by_side(keys, values, cache, slots):
    """What FlashAttention's kernel is documented to do with a cache (blocks, H_kv, block size, 2 D)."""
    for part, new in zip(cache.transpose(1, 2).split(DIM, dim=-1), (keys, values), strict=True):
        part[slots // SIZE, slots % SIZE] = new


def store_by_cpu_kernels(keys, values, cache, slots):
    from vllm import _custom_ops as kernels

    halves = cache.view(len(cache), HEADS, 2 * SIZE, DIM).chunk(2, dim=2)
    kernels.cpu_attn_reshape_and_cache(keys, values, *halves, slots, "vec")


STORES = [
    pytest.param(store_side_by_side, side_by_side, half_by_half, id="flash"),
    pytest.param(store_by_cpu_kernels, half_by_half, side_by_side, id="cpu", marks=needs_vllm),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("store", "right", "wrong"), STORES)
def test_only_the_right_reader_passes_and_nothing_is_left_behind(store, right, wrong, dtype):
    cache = torch.randn(BLOCKS, HEADS, SIZE, 2 * DIM).to(dtype)
    before = cache.clone()
    assert is_readable(store, right, cache)
    assert not is_readable(store, wrong, cache)
    assert torch.equal(cache, before)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (2, 0, 1, 3)])
def test_whatever_the_order_in_memory(order):
    """vLLM lays out the same four dimensions in memory as a backend prefers."""
    shape = [(BLOCKS, HEADS, SIZE, 2 * DIM)[n] for n in order]
    cache = torch.zeros(shape).permute([order.index(n) for n in range(4)])
    assert cache.shape == (BLOCKS, HEADS, SIZE, 2 * DIM)
    assert is_readable(store_side_by_side, side_by_side, cache)


def mixed(keys, values, cache, slots):
    store_side_by_side(values, keys, cache, slots)


def one_off(keys, values, cache, slots):
    store_side_by_side(keys.roll(1, 0), values, cache, slots)


def half_turned(keys, values, cache, slots):
    store_side_by_side(keys, values.flip(1), cache, slots)


@pytest.mark.parametrize("store", [mixed, one_off, half_turned])
def test_entries_in_other_places_are_noticed(store):
    assert not is_readable(store, side_by_side, torch.zeros(BLOCKS, HEADS, SIZE, 2 * DIM))


def test_a_store_that_fails_leaves_nothing_behind():
    def store(keys, values, cache, slots):
        cache.fill_(7)
        raise RuntimeError("no such kernel")

    cache = torch.randn(1, HEADS, SIZE, 2 * DIM)
    before = cache.clone()
    with pytest.raises(RuntimeError, match="no such kernel"):
        is_readable(store, side_by_side, cache)
    assert torch.equal(cache, before)


def test_refusals_say_what_was_found():
    cache, shape = torch.zeros(BLOCKS, HEADS, SIZE, 2 * DIM), (HEADS, SIZE, 2 * DIM)
    require_readable("layers.0", "FLASH_ATTN", store_side_by_side, side_by_side, cache, shape)
    with pytest.raises(ValueError, match=r"layers.0: the cache of vLLM's FLASH_ATTN .* torch.float32 that its kernels"):
        require_readable("layers.0", "FLASH_ATTN", store_side_by_side, half_by_half, cache, shape)
    with pytest.raises(ValueError, match=r"has blocks of \(2, 32, 128\), and not of .* = \(2, 16, 128\)"):
        require_readable("layers.0", "FLASH_ATTN", store_side_by_side, side_by_side, cache, (HEADS, 16, 2 * DIM))
