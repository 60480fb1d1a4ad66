import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import farthest_point_sampling
from beaconkv.ops.fused import sampling as fused

reference = farthest_point_sampling.implementations["reference"]


@given(
    lead=st.sampled_from([(), (1,), (2, 3), (1, 5, 2)]),
    size=st.integers(1, 70),
    dim=st.integers(1, 33),
    m=st.integers(0, 40),
    kinds=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    block=st.sampled_from([1, 100, 1 << 18]),
    seed=st.integers(0, 999),
)
def test_pick_for_pick(lead, size, dim, m, kinds, dtype, block, seed):
    """With repeated and zero queries, on views, whatever is normalised at a time."""
    g = torch.Generator().manual_seed(seed)
    few = torch.randint(-2, 3, (*lead, kinds, dim), generator=g)  # cosines tie
    queries = few.gather(-2, torch.randint(kinds, (*lead, size, 1), generator=g).expand(*lead, size, dim)).to(dtype)
    if seed % 2:
        queries = torch.randn(*lead, size, dim, generator=g).to(dtype)
    slab = torch.full((*lead, size + 2, dim), float("nan"), dtype=dtype)
    slab[..., :size, :] = queries
    before, fused.BLOCK = fused.BLOCK, block
    try:
        got = fused.farthest_point_sampling(slab[..., :size, :], m)
    finally:
        fused.BLOCK = before
    assert got.dtype == torch.int64
    assert torch.equal(got, reference(queries, m))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_bad_numbers_are_refused_alike(bad):
    queries = torch.randn(3, 5, 4)
    queries[1, 3, 2] = bad
    for function in (reference, fused.farthest_point_sampling):
        with pytest.raises(ValueError, match="queries holds NaN or infinite"):
            function(queries, 2)
