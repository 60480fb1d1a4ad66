import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import farthest_point_sampling, use_backend
from tests.reference import fps, fps_error

AXES = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, -4], [-1, 0, 0, 0], [1, 1, 1, 1], [1, -1, 1, -1]]
"""Directions whose cosines are exact in binary, so that ties are ties."""


@pytest.fixture(autouse=True, params=["reference", "fused"])
def _backend(request):
    """What runs by default is the fast twin: without this the reference itself would not be tested."""
    with use_backend(request.param):
        yield


@given(n=st.integers(1, 40), dim=st.integers(1, 9), m=st.integers(0, 45), seed=st.integers(0, 999))
def test_equals_scalar_on_random_queries(n, dim, m, seed):
    queries = torch.randn(2, 3, n, dim, generator=torch.Generator().manual_seed(seed))
    picks = farthest_point_sampling(queries, m)
    assert picks.shape == (2, 3, min(n, m))
    for row in range(2):
        for head in range(3):
            candidates, got = queries[row, head].double().tolist(), picks[row, head].tolist()
            assert len(set(got)) == len(got)
            if got != fps(candidates, m):  # only where rounding decides between equals
                assert fps_error(candidates, got) < 1e-6


@given(chosen=st.lists(st.sampled_from(AXES + [[0, 0, 0, 0]]), min_size=1, max_size=24), m=st.integers(1, 24))
def test_ties_and_zero_vectors_equal_scalar(chosen, m):
    queries = torch.tensor(chosen, dtype=torch.float32)
    assert farthest_point_sampling(queries, m).tolist() == fps(queries.double().tolist(), m)


def test_identical_queries_give_the_first_ones():
    queries = torch.tensor([0.5, -2.0, 1.0, 4.0]).expand(9, 4)
    assert farthest_point_sampling(queries, 4).tolist() == [0, 1, 2, 3]


def test_distinct_even_when_all_are_zero():
    assert sorted(farthest_point_sampling(torch.zeros(6, 4), 6).tolist()) == list(range(6))


def test_covers_every_cluster():
    centres = torch.eye(8)
    queries = (centres.repeat_interleave(9, 0) + 0.05 * torch.randn(72, 8))[torch.randperm(72)]
    picks = farthest_point_sampling(queries, 8)
    assert len(set(queries[picks].argmax(-1).tolist())) == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_computed_in_float32(dtype):
    queries = torch.randn(3, 33, 16).to(dtype)
    assert torch.equal(farthest_point_sampling(queries, 16), farthest_point_sampling(queries.float(), 16))


def test_length_does_not_matter():
    queries = torch.randn(33, 16)
    scaled = queries * torch.logspace(-30, 15, 33).unsqueeze(1)
    assert torch.equal(farthest_point_sampling(queries, 16), farthest_point_sampling(scaled, 16))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_numbers_are_refused_by_name(bad):
    queries = torch.randn(5, 4)
    queries[3, 2] = bad
    with pytest.raises(ValueError, match="queries holds NaN or infinite"):
        farthest_point_sampling(queries, 2)


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_samples must be >= 0, got -1"):
        farthest_point_sampling(torch.randn(5, 4), -1)
    with pytest.raises(ValueError, match=r"\(\.\.\., N, D\)"):
        farthest_point_sampling(torch.randn(4), 1)
