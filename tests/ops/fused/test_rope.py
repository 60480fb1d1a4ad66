import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import LAYOUTS, unrotate_into
from beaconkv.ops.fused import rope as fused
from beaconkv.types import Rope

reference = unrotate_into.implementations["reference"]


@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 7),
    m=st.integers(1, 9),
    half=st.integers(1, 8),
    rest=st.integers(0, 5),
    shared=st.booleans(),
    one_step=st.booleans(),
    differ=st.booleans(),
    factor=st.sampled_from([1.0, 1.3]),
    layout=st.sampled_from(list(LAYOUTS.values())),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    block=st.sampled_from([1, 200, 1 << 17]),
    seed=st.integers(0, 999),
)
def test_equals_the_reference(rows, heads, m, half, rest, shared, one_step, differ, factor, layout, dtype, block, seed):
    """Into a part of a buffer, from a part of another, and nothing beside it is touched.

    differ: cos and sin of the two dimensions of a pair are not those of one angle.
    """
    g = torch.Generator().manual_seed(seed)
    ring = torch.randn(rows, heads, m + 3, 2 * half + rest, generator=g).to(dtype)
    angle = torch.randn(1 if shared else rows, 1 if one_step else m, 2 * half, generator=g)
    if layout.listed_once or not differ:
        angle = layout.expand(angle[..., :half])
    rope = Rope((factor * angle.cos()).to(dtype), (factor * angle.sin()).to(dtype), layout.apply)
    targets = [torch.full((rows, heads, m + 4, 2 * half + rest), float("nan"), dtype=dtype) for _ in range(2)]
    reference(targets[0], 2, ring[:, :, 1 : m + 1], rope)
    before, fused.BLOCK = fused.BLOCK, block
    try:
        fused.unrotate_into(targets[1], 2, ring[:, :, 1 : m + 1], rope)
    finally:
        fused.BLOCK = before
    torch.testing.assert_close(targets[1], targets[0], atol=0, rtol=0, equal_nan=True)
    assert targets[1].isnan().sum() == rows * heads * 4 * (2 * half + rest)
