import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import ops
from tests.policies import scalar
from tests.reference import cosine, fps, fps_error


def histories(counts, longest, dim, seed, heads=2):
    """Queries of rows of different length; what lies beyond a row's count must not matter."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(counts), heads, longest, dim, generator=g)
    for row, count in enumerate(counts):
        x[row, :, count:] = 100 * torch.randn(heads, longest - count, dim, generator=g)
    return x, torch.tensor(counts)


cases = dict(
    counts=st.lists(st.integers(4, 30), min_size=1, max_size=3),
    extra=st.integers(0, 9),
    dim=st.integers(2, 6),
    num=st.integers(1, 4),
    seed=st.integers(0, 999),
)


@given(**cases)
def test_farthest_points_equal_scalar(counts, extra, dim, num, seed):
    x, count = histories(counts, max(counts) + extra, dim, seed)
    picks = ops.farthest_points(x, count, num)
    for row, size in enumerate(counts):
        for head in range(2):
            candidates, got = x[row, head, :size].double().tolist(), picks[row, head].tolist()
            assert len(set(got)) == num
            if got != fps(candidates, num):
                assert fps_error(candidates, got) < 1e-6


def test_farthest_points_are_those_of_the_bounded_buffer():
    x = torch.randn(3, 4, 200, 16)
    picks = ops.farthest_points(x, torch.tensor([200] * 3), 16)
    assert torch.equal(picks, ops.farthest_point_sampling(x, 16))


@given(**cases, iterations=st.integers(1, 5))
def test_kmeans_equals_scalar(counts, extra, dim, num, seed, iterations):
    x, count = histories(counts, max(counts) + extra, dim, seed)
    centroids, centres = ops.spherical_kmeans(x, count, num, iterations)
    picks = ops.nearest_queries(x, count, centres)
    for row, size in enumerate(counts):
        for head in range(2):
            queries = x[row, head, :size].double().tolist()
            means, directions = scalar.kmeans(queries, num, iterations)
            torch.testing.assert_close(centroids[row, head], torch.tensor(means), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(centres[row, head], torch.tensor(directions), rtol=1e-4, atol=1e-5)
            near = scalar.nearest(queries, directions)
            got = [queries[i] for i in picks[row, head].tolist()]
            assert len(set(picks[row, head].tolist())) == num
            for centre, a, b in zip(directions, got, near, strict=True):
                assert abs(cosine(a, centre) - cosine(b, centre)) < 1.1e-5


def test_clusters_are_found():
    directions = torch.nn.functional.normalize(torch.randn(5, 32), dim=-1)
    x = directions[torch.arange(200) % 5] * torch.linspace(1, 3, 200).unsqueeze(-1) + 0.02 * torch.randn(200, 32)
    centroids, centres = ops.spherical_kmeans(x.view(1, 1, 200, 32), torch.tensor([200]), 5, 10)
    match = centres[0, 0] @ directions.T
    assert sorted(match.argmax(-1).tolist()) == [0, 1, 2, 3, 4]
    assert match.amax(-1).min() > 0.99
    assert centroids.norm(dim=-1).min() > 1.5  # lengths count in the average


def test_a_cluster_without_queries_keeps_its_first_centre():
    x = torch.tensor([[1.0, 0], [1, 0], [1, 0]]).view(1, 1, 3, 2)
    centroids, centres = ops.spherical_kmeans(x, torch.tensor([3]), 2, 3)
    assert torch.equal(centroids, torch.tensor([[[[1.0, 0], [1, 0]]]]))
    assert torch.equal(centres, centroids)
    assert ops.nearest_queries(x, torch.tensor([3]), centres).tolist() == [[[0, 1]]]


def test_of_two_centres_equally_near_the_first_is_taken():
    x = torch.tensor([[1.0, 0], [0, 1], [1, 1]]).view(1, 1, 3, 2)
    centroids, centres = ops.spherical_kmeans(x, torch.tensor([3]), 2, 1)
    assert torch.equal(centroids, torch.tensor([[[[1.0, 0.5], [0, 1]]]]))
    assert torch.equal(centres[..., 1, :], x[..., 1, :])


def test_of_two_queries_equally_near_the_first_is_taken():
    """Their centre lies between them, and rounding puts it nearer to either."""
    x = torch.randn(1, 500, 2, 16)
    _, centres = ops.spherical_kmeans(x, torch.tensor([2]), 1, 3)
    assert not ops.nearest_queries(x, torch.tensor([2]), centres).any()
