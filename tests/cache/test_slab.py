"""A slab without a budget grows, and loses nothing on the way."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import EvictionSchedule, make_policy, ops
from beaconkv.cache import BoundedLayer
from beaconkv.cache.slab import GROWTH
from beaconkv.types import AttentionParams, Rope


@given(
    chunks=st.lists(st.sampled_from([1, 1, 2, GROWTH - 1, GROWTH, GROWTH + 1, 2 * GROWTH + 3]), min_size=1, max_size=8)
)
def test_what_was_stored_is_what_came(chunks):
    layer = BoundedLayer(make_policy("full"), EvictionSchedule(None))
    keys, values = torch.randn(2, 2, 1, sum(chunks), 2)
    start = 0
    for size in chunks:
        part = slice(start, start + size)
        layer.append(keys[:, :, part], values[:, :, part])
        still = Rope(torch.ones(1, size, 2), torch.zeros(1, size, 2), ops.apply_half)
        layer.observe(torch.randn(2, 1, size, 2), still, AttentionParams(1.0))
        layer.check_integrity()
        start += size
        slab = layer.slab
        assert torch.equal(slab.keys[:, :, :start], keys[:, :, :start])
        assert torch.equal(slab.values[:, :, :start], values[:, :, :start])
        assert torch.equal(slab.held_positions(), torch.arange(start).expand(2, 1, -1).int())
        assert start <= slab.keys.shape[2] < start + GROWTH
        assert slab.keys.shape[2] % GROWTH == 0
