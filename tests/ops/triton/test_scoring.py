from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv.ops import POOLS
from beaconkv.types import FREE, AttentionParams
from tests.ops.triton.twins import assert_refused_alike, reference, twin

reference = reference("observation_scores")
twin = twin("observation_scores", "scoring")
pytestmark = [  # the interpreter's, on log(0) and on NaN
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning"),
]


def assert_same(args, **pools):
    """Each weight is right to some units in the last place of its logit."""
    expected, got = reference(*args, **pools), twin(*args, **pools)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=5e-5, atol=1e-7)
    return got


def slab(shape, size, dim, dtype, device, g):
    """A view of the stored part of a larger slab in which free slots are NaN."""
    whole = torch.full((*shape, size + 3, dim), float("nan"), device=device, dtype=dtype)
    whole[:, :, :size] = torch.randn(*shape, size, dim, generator=g).to(device, dtype)
    return whole[:, :, :size]


@st.composite
def sizes(draw):
    """(R, H_kv, G, n, N, D): all that matters is somewhere, but not all of it at once."""
    rows, kv_heads, group = draw(st.sampled_from([(1, 1, 1), (2, 2, 1), (1, 2, 3), (2, 1, 4), (1, 1, 8)]))
    n = draw(st.sampled_from([1, 2, 7, 16]))
    return rows, kv_heads, group, n, draw(st.integers(1, 40) | st.sampled_from([64, 65, 100])), draw(st.integers(1, 40))


@settings(max_examples=30)
@given(
    sizes=sizes(),
    query_pool=st.sampled_from(POOLS),
    group_pool=st.sampled_from(POOLS),
    softcap=st.sampled_from([None, None, 2.0, 30]),
    sinks=st.sampled_from([None, torch.float32, torch.bfloat16]),
    scales=st.sampled_from([None, "query", "head"]),
    dtypes=st.sampled_from(
        [
            (torch.float32, torch.float32),
            (torch.float32, torch.bfloat16),
            (torch.bfloat16, torch.bfloat16),
            (torch.float32, torch.float16),
        ]
    ),
    integers=st.sampled_from([torch.int32, torch.int64]),
    seed=st.integers(0, 999),
)
def test_equals_the_reference(
    device, monkeypatch, sizes, query_pool, group_pool, softcap, sinks, scales, dtypes, integers, seed
):
    rows, kv_heads, group, n, size, dim = sizes
    monkeypatch.setattr(import_module("beaconkv.ops.triton.scoring"), "ENTRIES", [16, 32][seed % 2])
    monkeypatch.setattr(import_module("beaconkv.ops.triton.scoring"), "SPAN", [32, 64][seed % 2])
    g = torch.Generator().manual_seed(seed)
    queries = 2 * torch.randn(rows, kv_heads * group, n, dim, generator=g).to(device, dtypes[0])
    keys = slab((rows, kv_heads), size, dim, dtypes[1], device, g)
    held = torch.stack([torch.randperm(2 * size, generator=g)[:size] for _ in range(rows * kv_heads)])
    held = held.view(rows, kv_heads, size).to(device, integers)
    at = torch.randint(0, 2 * size, (rows, n), generator=g).to(device)
    held[0, :, 0] = FREE  # a row without this entry: what lies there must not matter
    keys[0, :, 0] = float("nan")
    at[-1, 0] = -1  # a query that sees nothing
    sink = None if sinks is None else torch.randn(kv_heads * group, generator=g).to(device, sinks)
    params = AttentionParams(dim**-0.5, softcap, sink)
    scale = None
    if scales is not None:
        shape = (n,) if scales == "query" else (rows, kv_heads * group, n)
        scale = torch.rand(*shape, generator=g).to(device)
    pools = dict(query_pool=query_pool, group_pool=group_pool, query_scales=scale)
    got = assert_same((queries, keys, params, at, held), **pools)
    assert torch.equal(got[0, :, 0], torch.zeros_like(got[0, :, 0]))


@pytest.mark.parametrize(("n", "size", "dim"), [(32, 200, 64), (40, 70, 20), (3, 300, 128), (5, 90, 80)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_usual_sizes(device, n, size, dim, dtype):
    g = torch.Generator().manual_seed(n)
    keys = slab((1, 1), size, dim, dtype, device, g)
    queries = 3 * torch.randn(1, 2, n, dim, generator=g).to(device)
    at = torch.randint(size // 2, size, (1, n), generator=g).to(device)
    assert_same((queries, keys, AttentionParams(dim**-0.5), at, torch.arange(size, device=device).view(1, 1, -1).int()))


def test_queries_are_not_rounded_to_the_keys_bfloat16(device):
    queries, keys = torch.randn(1, 1, 4, 32), torch.randn(1, 1, 20, 32).bfloat16()
    positions = torch.arange(20).view(1, 1, -1)
    rest = AttentionParams(1.0), torch.full((1, 4), 20, device=device), positions.to(device)
    exact = assert_same((queries.to(device), keys.to(device), *rest))
    rounded = reference(queries.bfloat16().to(device), keys.to(device), *rest)
    assert (rounded - exact).abs().max() > 1e-4  # else this shows nothing


def test_equal_keys_have_equal_scores(device):
    keys = torch.randn(1, 2, 3, 8).repeat(1, 1, 30, 1).to(device)
    at, held = torch.full((1, 4), 99, device=device), torch.arange(90, device=device).expand(1, 2, -1)
    got = twin(torch.randn(1, 4, 4, 8).to(device), keys, AttentionParams(0.3), at, held).view(1, 2, 30, 3)
    assert torch.equal(got, got[:, :, :1].expand_as(got))


def test_strided_arguments(device):
    """Heads and steps exchanged, positions expanded, dimensions apart."""
    queries = torch.randn(2, 5, 4, 12, device=device)[..., ::2].transpose(1, 2)
    keys = torch.randn(2, 30, 2, 18, device=device)[..., ::3].transpose(1, 2)
    at = torch.randint(0, 30, (5, 2), device=device).T
    assert_same((queries, keys, AttentionParams(0.5), at, torch.arange(30, device=device).expand(2, 2, -1)))


@pytest.mark.parametrize("query_pool", POOLS)
@pytest.mark.parametrize("group_pool", POOLS)
@pytest.mark.parametrize("where", ["query", "key"])
def test_bad_numbers_reach_the_check_of_the_scores(device, query_pool, group_pool, where):
    queries, keys = torch.randn(1, 2, 3, 4, device=device), torch.randn(1, 1, 9, 4, device=device)
    (queries if where == "query" else keys)[0, 0, 1, 2] = float("nan")
    at, held = torch.full((1, 3), 9, device=device), torch.arange(9, device=device).view(1, 1, -1)
    args = queries, keys, AttentionParams(0.5), at, held, query_pool, group_pool
    assert torch.equal(twin(*args).isnan(), reference(*args).isnan())
    assert twin(*args).isnan().any()


def test_large_logits(device):
    queries, keys = 300 * torch.randn(1, 1, 3, 8, device=device), 300 * torch.randn(1, 1, 9, 8, device=device)
    at, held = torch.full((1, 3), 9, device=device), torch.arange(9, device=device).view(1, 1, -1)
    for softcap in (None, 20.0):
        got = twin(queries, keys, AttentionParams(1.0, softcap), at, held)
        torch.testing.assert_close(got, reference(queries, keys, AttentionParams(1.0, softcap), at, held))


def test_refusals(device):
    at, held = torch.zeros(1, 1, device=device), torch.zeros(1, 2, 1, device=device)
    two, three, params = torch.randn(1, 2, 1, 4).to(device), torch.randn(1, 3, 1, 4).to(device), AttentionParams(1.0)
    for error, args in [
        (ValueError, (three, two, params, at, held)),
        (ValueError, (two, two, params, at, held, "sum")),
        (ValueError, (two, two, params, at, held, "max", "sum")),
        (RuntimeError, (two, two[..., :3], params, at, held)),
        (IndexError, (two[:, :, :0], two, params, at[:, :0], held)),
    ]:
        assert_refused_alike("observation_scores", twin, error, *args)


def test_no_entries_and_what_broadcasts(device):
    queries, params = torch.randn(2, 2, 3, 4, device=device), AttentionParams(0.5)
    at = torch.full((2, 3), 9, device=device)
    assert twin(queries, torch.randn(2, 1, 0, 4, device=device), params, at, at.view(2, 1, 3)[..., :0]).numel() == 0
    one = torch.randn(1, 1, 5, 4, device=device), torch.arange(5, device=device).view(1, 1, -1)
    assert_same((queries, one[0], params, at, one[1]))
