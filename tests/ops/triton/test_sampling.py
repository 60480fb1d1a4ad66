import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.test_sampling import AXES
from tests.ops.triton.twins import assert_refused_alike, reference, twin
from tests.reference import fps_error

reference = reference("farthest_point_sampling")
twin = twin("farthest_point_sampling", "sampling")
EXACT = [*AXES, [0, 0, 0, 0]]


def assert_same(queries, num_samples):
    expected, got = reference(queries, num_samples), twin(queries, num_samples)
    assert got.dtype == torch.int64
    assert got.shape == expected.shape
    heads = queries.reshape(-1, *queries.shape[-2:])
    for x, a, b in zip(heads, got.view(len(heads), -1), expected.view(len(heads), -1), strict=True):
        if not torch.equal(a, b):  # only where rounding decides between equals
            assert len(set(a.tolist())) == len(b)
            assert fps_error(x.double().tolist(), a.tolist()) < 1e-6


@settings(max_examples=40)
@given(
    lead=st.sampled_from([(), (1,), (2, 2)]),
    size=st.integers(1, 40) | st.sampled_from([63, 64]),
    dim=st.integers(1, 40) | st.sampled_from([80, 128]),
    num=st.integers(0, 12),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 999),
)
def test_equals_the_reference(device, lead, size, dim, num, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    assert_same(torch.randn(*lead, size, dim, generator=g).to(device, dtype), num)


@settings(max_examples=10)
@given(
    size=st.integers(65, 200),
    dim=st.integers(2, 40),
    num=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_equals_the_reference_beyond_a_matrix(device, size, dim, num, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    assert_same(torch.randn(2, size, dim, generator=g).to(device, dtype), num)


@settings(max_examples=25)
@given(chosen=st.lists(st.sampled_from(EXACT), min_size=1, max_size=24), num=st.integers(1, 24))
def test_ties_and_zero_vectors(device, chosen, num):
    queries = torch.tensor(chosen, dtype=torch.float32, device=device)
    assert torch.equal(twin(queries, num), reference(queries, num))


@settings(max_examples=6)
@given(chosen=st.lists(st.sampled_from(EXACT), min_size=66, max_size=140), num=st.integers(1, 12))
def test_ties_and_zero_vectors_beyond_a_matrix(device, chosen, num):
    queries = torch.tensor(chosen, dtype=torch.float32, device=device)
    assert torch.equal(twin(queries, num), reference(queries, num))


@pytest.mark.parametrize("size", [9, 70])
def test_identical_queries_give_the_first_ones(device, size):
    queries = torch.tensor([0.5, -2.0, 1.0, 4.0], device=device).expand(size, 4)
    assert twin(queries, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [40, 70])
def test_rounding_of_a_cosine_to_itself_breaks_no_tie(device, size):
    """Of directions at right angles the first are taken, though u . u is not always 1 in float32."""
    queries = torch.block_diag(*torch.rand(size, 1, 3)).to(device)
    unit = queries / queries.norm(dim=-1, keepdim=True)
    assert len(set((unit * unit).sum(-1).tolist())) > 1
    assert twin(queries, 8).tolist() == reference(queries, 8).tolist() == list(range(8))
    with_zero = torch.cat([queries, torch.zeros_like(queries[:1])])  # whose mean cosine is lowest
    assert twin(with_zero, 8).tolist() == reference(with_zero, 8).tolist() == [size, *range(7)]


@pytest.mark.parametrize("size", [6, 66])
def test_distinct_even_when_all_are_zero(device, size):
    assert sorted(twin(torch.zeros(size, 4, device=device), size).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [33, 70])
def test_length_does_not_matter(device, size):
    queries = torch.randn(size, 16)
    scaled = queries * torch.logspace(-38, 38, size).unsqueeze(1).clamp(max=1e37)
    assert torch.equal(twin(scaled.to(device), 8), reference(queries, 8).to(device))


@pytest.mark.parametrize("size", [21, 70])
def test_strided_queries(device, size):
    """A part of a buffer, heads and steps exchanged, every second dimension; nothing outside is read."""
    buffer = torch.full((2, size + 5, 3, 20), float("nan"), device=device)
    queries = buffer[:, 2 : size + 2, :, ::2].transpose(1, 2)
    queries.copy_(torch.randn(2, 3, size, 10))
    assert_same(queries, 7)
    assert_same(queries[1], 7)


def test_bad_arguments_are_refused_as_by_the_reference(device):
    for queries, num in [(torch.randn(5, 4), -1), (torch.randn(4), 1)]:
        assert_refused_alike("farthest_point_sampling", twin, ValueError, queries.to(device), num)


@pytest.mark.parametrize("size", [5, 80])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_numbers_are_refused_by_name(device, size, bad):
    if device.type != "cpu":
        pytest.skip("on a device the refusal is an assertion that ends the process")
    queries = torch.randn(size, 4)
    queries[3, 2] = bad
    with pytest.raises(ValueError, match="queries holds NaN or infinite"):
        twin(queries, 2)


def test_no_queries(device):
    assert twin(torch.empty(2, 0, 4, device=device), 3).shape == (2, 0)
    assert twin(torch.empty(0, 5, 4, device=device), 3).shape == (0, 3)
