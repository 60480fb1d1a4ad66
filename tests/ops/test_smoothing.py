import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import pool_positions
from tests.policies.scalar import smoothed


@given(
    n=st.integers(1, 30),
    kernel=st.sampled_from([1, 3, 5, 7, 31]),
    how=st.sampled_from(["avg", "max"]),
    seed=st.integers(0, 999),
)
def test_equals_scalar_in_any_slot_order(n, kernel, how, seed):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, n, generator=g)
    positions = torch.stack([torch.randperm(3 * n, generator=g)[:n] for _ in range(6)]).view(2, 3, n).int()
    got = pool_positions(scores, positions, kernel, how)
    for row in range(2):
        for head in range(3):
            table = dict(zip(positions[row, head].tolist(), scores[row, head].double().tolist(), strict=True))
            expected = smoothed(table, how, kernel)
            for p, value in zip(positions[row, head].tolist(), got[row, head].tolist(), strict=True):
                assert value == pytest.approx(expected[p], abs=1e-6)


def test_the_order_of_slots_does_not_matter():
    scores, positions = torch.randn(1, 1, 40), torch.arange(40).view(1, 1, -1)
    order = torch.randperm(40)
    pooled = pool_positions(scores, positions, 7, "avg")
    assert torch.equal(pool_positions(scores[..., order], positions[..., order], 7, "avg"), pooled[..., order])
    assert not torch.equal(pooled, scores)


def test_an_end_is_averaged_over_what_is_there():
    scores = torch.tensor([[[6.0, 0.0, 3.0, 0.0, 0.0]]])
    assert pool_positions(scores, torch.arange(5).view(1, 1, -1), 3, "avg").tolist() == [[[3.0, 3.0, 1.0, 1.0, 0.0]]]


def test_none_and_one_change_nothing():
    scores, positions = torch.randn(1, 2, 9), torch.arange(9).expand(1, 2, -1)
    assert pool_positions(scores, positions, 7, "none") is scores
    for how in ("avg", "max"):
        assert torch.equal(pool_positions(scores, positions, 1, how), scores)


@pytest.mark.parametrize(
    ("kernel", "how", "message"),
    [
        (4, "avg", "kernel must be odd and >= 1, got 4"),
        (0, "max", "kernel must be odd and >= 1, got 0"),
        (3, "mean", "how must be one of none, avg, max; got 'mean'"),
    ],
)
def test_refusals(kernel, how, message):
    with pytest.raises(ValueError, match=message):
        pool_positions(torch.zeros(1, 1, 3), torch.arange(3).view(1, 1, -1), kernel, how)
