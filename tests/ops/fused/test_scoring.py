import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import POOLS, observation_scores
from beaconkv.ops.fused import scoring as fused
from beaconkv.types import FREE, AttentionParams

reference = observation_scores.implementations["reference"]


@given(
    rows=st.integers(1, 3),
    kv_heads=st.integers(1, 5),
    group=st.integers(1, 4),
    n=st.integers(1, 33),
    size=st.integers(1, 70),
    dim=st.integers(1, 20),
    query_pool=st.sampled_from(POOLS),
    group_pool=st.sampled_from(POOLS),
    softcap=st.sampled_from([None, 3.0]),
    sinks=st.booleans(),
    scales=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    block=st.sampled_from([1, 500, 1 << 18]),
    seed=st.integers(0, 999),
)
def test_equals_the_reference(
    rows, kv_heads, group, n, size, dim, query_pool, group_pool, softcap, sinks, scales, dtype, block, seed
):
    """On views of a slab whose free slots hold NaN, with entries and queries that are not seen or see nothing."""
    g = torch.Generator().manual_seed(seed)
    queries = 2 * torch.randn(rows, kv_heads * group, n, dim, generator=g)
    slab = torch.full((rows, kv_heads, size + 3, dim), float("nan"), dtype=dtype)
    slab[:, :, :size] = torch.randn(rows, kv_heads, size, dim, generator=g)
    keys = slab[:, :, :size]
    held = torch.rand(rows, kv_heads, 90, generator=g).argsort(-1)[..., :size].int()
    at = torch.randint(-1, 95, (rows, n), generator=g)
    held[:, :, : size // 4] = FREE
    params = AttentionParams(0.3, softcap, torch.randn(kv_heads * group, generator=g) if sinks else None)
    scale = torch.rand(*((rows, kv_heads * group, n) if seed % 2 else (n,)), generator=g) if scales else None
    untouched = queries.clone(), held.clone()
    before, fused.BLOCK["cpu"] = fused.BLOCK["cpu"], block
    try:
        got = fused.observation_scores(queries, keys, params, at, held, query_pool, group_pool, scale)
    finally:
        fused.BLOCK["cpu"] = before
    expected = reference(queries, keys, params, at, held, query_pool, group_pool, scale)
    assert got.dtype == torch.float32
    assert got.shape == (rows, kv_heads, size)
    torch.testing.assert_close(got, expected, atol=1e-7, rtol=2e-5)
    assert torch.equal(queries, untouched[0])
    assert torch.equal(held, untouched[1])


def test_refusals_are_the_references():
    at, held = torch.zeros(1, 1), torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2"):
        fused.observation_scores(torch.randn(1, 3, 1, 4), torch.randn(1, 2, 1, 4), AttentionParams(1.0), at, held)
    args = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4), AttentionParams(1.0), at, held
    with pytest.raises(ValueError, match="pool must be one of max, mean; got 'sum'"):
        fused.observation_scores(*args, query_pool="sum")
