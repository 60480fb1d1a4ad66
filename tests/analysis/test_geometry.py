"""Components and clusters against slow computations, planted groups and pure chance."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import ops
from beaconkv.analysis.geometry import best_silhouettes, cluster_check, principal_components, silhouette, unusual


def groups(number, each, dim=16, spread=0.3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(number, 1, dim, generator=draw), dim=-1)
    noise = torch.randn(number, each, dim, generator=draw) * spread / dim**0.5
    return (centres + noise).flatten(0, 1)


def test_principal_components_are_those_of_the_covariance():
    x = torch.randn(50, 6) * torch.tensor([5.0, 3, 1, 1, 0.5, 0.1]) + 7
    points, share = principal_components(x, 3)
    values, vectors = np.linalg.eigh(np.cov(x.double().numpy().T))
    for i in range(3):
        direction = vectors[:, -1 - i]
        direction = direction * np.sign(direction[np.abs(direction).argmax()])
        expected = (x.double().numpy() - x.double().numpy().mean(0)) @ direction
        np.testing.assert_allclose(points[:, i].numpy(), expected, atol=1e-3)
        assert share[i].item() == pytest.approx(values[-1 - i] / values.sum(), rel=1e-4)
    with pytest.raises(ValueError, match="3 components"):
        principal_components(torch.randn(2, 8), 3)


def slow_silhouette(x, labels):
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    distance = 1 - unit @ unit.T
    values = []
    for i in range(len(x)):
        own = [j for j in range(len(x)) if labels[j] == labels[i] and j != i]
        others = [[j for j in range(len(x)) if labels[j] == c] for c in set(labels) - {labels[i]}]
        if not own or not others:
            values.append(0.0)
            continue
        a = distance[i, own].mean()
        b = min(distance[i, other].mean() for other in others)
        values.append(((b - a) / max(a, b)).item())
    return sum(values) / len(values)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=14), st.integers(0, 50))
def test_silhouette_equals_its_formula(labels, seed):
    x = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed))
    member = torch.nn.functional.one_hot(torch.tensor(labels), 4).float()
    found = silhouette(ops.cosine_matrix(x)[None], member[None])
    assert found.item() == pytest.approx(slow_silhouette(x, labels), abs=1e-5)


@pytest.mark.parametrize("number", [2, 3, 6])
def test_planted_groups_are_found(number):
    queries = groups(number, 24)
    found = cluster_check(queries, torch.ones(len(queries), dtype=torch.bool))
    assert found.clusters == number
    assert found.p_value == 0.05
    assert found.silhouette > found.highest_shuffled + 0.1
    assert np.isnan(found.local)


def test_chance_is_not_taken_for_groups():
    draw = torch.Generator().manual_seed(3)
    low = 0
    for _ in range(20):
        queries = torch.randn(60, 16, generator=draw)
        low += cluster_check(queries, torch.ones(60, dtype=torch.bool), seed=7).p_value <= 0.05
    assert low <= 4


def test_a_common_direction_is_no_group():
    """Queries of one head share a mean; that alone must not look like clusters."""
    draw = torch.Generator().manual_seed(5)
    queries = torch.randn(120, 16, generator=draw) + 4 * torch.randn(16, generator=draw)
    assert cluster_check(queries, torch.ones(120, dtype=torch.bool)).p_value > 0.05


def test_local_queries_are_compared_where_there_are_enough():
    far, near = groups(3, 20), torch.randn(80, 16, generator=torch.Generator().manual_seed(1))
    is_global = torch.arange(140) < 60
    found = cluster_check(torch.cat([far, near]), is_global)
    assert found.count == 60
    assert found.beside_local > found.local + 0.2
    fewer = cluster_check(torch.cat([far, near[:40]]), is_global[:100])
    assert fewer.beside_local > fewer.local + 0.2
    assert fewer.silhouette == found.silhouette
    assert np.isnan(cluster_check(torch.cat([far, near[:31]]), is_global[:91]).local)
    assert cluster_check(torch.cat([far, near]), torch.arange(140) < 31) is None


def test_the_same_seed_gives_the_same_answer():
    queries = torch.randn(400, 8, generator=torch.Generator().manual_seed(2))
    every = torch.ones(400, dtype=torch.bool)
    first, second = (cluster_check(queries, every, most=64) for _ in range(2))
    assert repr(first) == repr(second)
    assert first.count == 64


def test_best_silhouettes_of_a_batch_are_those_of_each():
    x = torch.stack([groups(2, 10, seed=1), groups(4, 5, seed=2), torch.randn(20, 16)])
    values, numbers = best_silhouettes(x, (2, 4))
    for row in range(3):
        value, number = best_silhouettes(x[row : row + 1], (2, 4))
        assert value.item() == pytest.approx(values[row].item(), abs=1e-5)
        assert number.item() == numbers[row].item()
    assert numbers[:2].tolist() == [2, 4]


def test_unusual_queries_point_away_from_the_rest():
    queries = torch.cat([groups(1, 30), -groups(1, 3)])
    assert unusual(queries, 3).tolist() == [30, 31, 32]
    assert len(unusual(queries, 99)) == 33


@given(st.integers(1, 6), st.integers(40, 90), st.floats(0, 1e-6))
def test_silhouettes_of_repeated_queries_stay_within_one(period, count, noise):
    """A text stuck in a loop has equal queries in the first layer, up to rounding."""
    draw = torch.Generator().manual_seed(period)
    few = torch.randn(period, 16, generator=draw)
    queries = few[torch.arange(count) % period] * (1 + noise * torch.randn(count, 1, generator=draw))
    found = cluster_check(queries, torch.ones(count, dtype=torch.bool))
    assert -1 <= found.silhouette <= 1.0001
    assert -1 <= found.shuffled <= 1.0001
