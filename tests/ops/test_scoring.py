import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import POOLS, attention_weights, group_attention_weights, observation_scores, use_backend
from beaconkv.types import AttentionParams
from tests import reference


@pytest.fixture(autouse=True, params=["reference", "fused"])
def _backend(request):
    """What runs by default is the fast twin: without this the reference itself would not be tested."""
    with use_backend(request.param):
        yield


@given(
    group=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    n=st.integers(1, 7),
    num_entries=st.integers(1, 13),
    query_pool=st.sampled_from(POOLS),
    group_pool=st.sampled_from(POOLS),
    sinks=st.booleans(),
    scale=st.sampled_from([None, 0.25, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_equals_scalar(group, kv_heads, n, num_entries, query_pool, group_pool, sinks, scale, dtype, seed):
    """A query whose logits are scaled by s is the query of a softmax with s times the scaling and s times the sink."""
    g = torch.Generator().manual_seed(seed)
    queries = torch.randn(2, kv_heads * group, n, 6, generator=g).to(dtype)
    keys = torch.randn(2, kv_heads, num_entries, 6, generator=g).to(dtype)
    positions = torch.stack([torch.randperm(50, generator=g)[:num_entries] for _ in range(2 * kv_heads)])
    positions = positions.view(2, kv_heads, num_entries).int()
    at = torch.randint(50, 60, (2, n), generator=g)
    at[:, 0] = positions.amax((1, 2))  # one query in the past of none, some that see a part
    at[:, -1] = positions.amin((1, 2)) + 3
    sink = torch.randn(kv_heads * group, generator=g) if sinks else None
    scales = None if scale is None else torch.tensor([scale, *[1.0] * (n - 1)])  # of the first query alone
    params = AttentionParams(0.4, sinks=sink)
    got = observation_scores(queries, keys, params, at, positions, query_pool, group_pool, scales)
    assert got.dtype == torch.float32
    for row in range(2):
        for head in range(kv_heads):
            per_head = []
            for h in range(head * group, (head + 1) * group):
                rows = []
                for i in range(n):
                    seen = positions[row, head].tolist()
                    if min(seen) > at[row, i]:
                        rows.append([0.0] * num_entries)
                        continue
                    own = 1.0 if scale is None or i else scale
                    rows.append(
                        reference.weights(
                            queries[row, h, i].double().tolist(),
                            at[row, i].item(),
                            keys[row, head].double().tolist(),
                            seen,
                            own * 0.4,
                            None if sink is None else own * sink[h].item(),
                        )
                    )
                per_head.append([reference.pooled([r[j] for r in rows], query_pool) for j in range(num_entries)])
            expected = [reference.pooled([p[j] for p in per_head], group_pool) for j in range(num_entries)]
            torch.testing.assert_close(got[row, head], torch.tensor(expected), atol=1e-5, rtol=1e-4)


def test_each_pool_is_its_own_choice():
    args = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8), AttentionParams(0.5)
    at, positions = torch.full((1, 5), 9), torch.arange(9).expand(1, 2, -1)
    cells = [observation_scores(*args, at, positions, q, g) for q in POOLS for g in POOLS]
    for i in range(4):
        for j in range(i):
            assert not torch.allclose(cells[i], cells[j])


@given(
    group=st.integers(1, 4), n=st.integers(1, 4), num_entries=st.integers(1, 9), sinks=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_group_takes_the_largest_logit_and_the_largest_sink(group, n, num_entries, sinks, seed):
    g = torch.Generator().manual_seed(seed)
    queries, keys = torch.randn(2, 2 * group, n, 6, generator=g), torch.randn(2, 2, num_entries, 6, generator=g)
    sink = torch.randn(2 * group, generator=g) if sinks else None
    at = torch.randint(0, 12, (2, n), generator=g)
    positions = torch.randperm(12, generator=g)[:num_entries].expand(2, 2, -1)
    got = group_attention_weights(queries, keys, AttentionParams(0.4, sinks=sink), at, positions)
    for row in range(2):
        for head in range(2):
            own = slice(head * group, (head + 1) * group)
            logits = (0.4 * queries[row, own].double() @ keys[row, head].double().T).amax(0)
            for i in range(n):
                seen = positions[row, head] <= at[row, i]
                parts = torch.cat([logits[i][seen], logits.new_empty(0) if sink is None else sink[own].max()[None]])
                expected = torch.zeros(num_entries, dtype=torch.float64)
                expected[seen] = parts.softmax(0)[: seen.sum()].double()
                torch.testing.assert_close(got[row, head, i].double(), expected, atol=1e-6, rtol=1e-5)


def test_softcap_and_rows_sum_to_one():
    queries, keys = 9 * torch.randn(1, 2, 3, 8), 9 * torch.randn(1, 2, 5, 8)
    at, positions = torch.full((1, 3), 9), torch.arange(5).expand(1, 2, -1)
    weights = attention_weights(queries, keys, AttentionParams(1.0, softcap=2.0), at, positions)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 1, 3))
    logits = 2.0 * torch.tanh(queries.view(1, 2, 1, 3, 8) @ keys.view(1, 2, 1, 5, 8).mT / 2.0)
    torch.testing.assert_close(weights, logits.softmax(-1))
    scores = observation_scores(queries, keys, AttentionParams(1.0, softcap=2.0), at, positions)
    torch.testing.assert_close(scores, logits.softmax(-1).amax((2, 3)))


def test_refusals():
    at, positions = torch.zeros(1, 1), torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2"):
        attention_weights(torch.randn(1, 3, 1, 4), torch.randn(1, 2, 1, 4), AttentionParams(1.0), at, positions)
    with pytest.raises(ValueError, match="max, mean; got 'sum'"):
        observation_scores(
            torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4), AttentionParams(1.0), at, positions, "sum", "max"
        )
