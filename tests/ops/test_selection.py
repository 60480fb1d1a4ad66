import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import select_entries
from tests import reference


@st.composite
def cases(draw):
    n = draw(st.integers(2, 40))
    budget = draw(st.integers(1, n - 1))
    prefix = draw(st.integers(0, budget))
    protect = draw(st.integers(0, budget - prefix))
    levels = draw(st.sampled_from([1, 2, 5, 1000]))  # few levels: mostly ties
    return n, budget, prefix, protect, levels, draw(st.integers(0, 999))


@given(cases())
def test_equals_scalar_with_ties_and_any_slot_order(case):
    n, budget, prefix, protect, levels, seed = case
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(-levels, levels, (2, 3, n), generator=g) / 8
    positions = torch.stack([torch.randperm(3 * n, generator=g)[:n] for _ in range(6)]).view(2, 3, n).int()
    keep = select_entries(scores, positions, budget, prefix=prefix, protect=protect)
    assert keep.shape == (2, 3, budget)
    assert (keep[..., 1:] > keep[..., :-1]).all()
    for row in range(2):
        for head in range(3):
            table = dict(zip(positions[row, head].tolist(), scores[row, head].tolist(), strict=True))
            expected = reference.keep(table, budget, prefix, protect)
            assert sorted(positions[row, head, keep[row, head]].tolist()) == expected


def test_protected_entries_survive_the_highest_scores():
    scores = torch.full((1, 1, 20), 1e30)
    scores[..., :3] = scores[..., -4:] = -1e30
    keep = select_entries(scores, torch.arange(20).view(1, 1, -1), 10, prefix=3, protect=4)
    assert keep.flatten().tolist() == [0, 1, 2, 3, 4, 5, 16, 17, 18, 19]


@pytest.mark.parametrize(("budget", "prefix", "protect"), [(20, 0, 0), (25, 0, 0), (5, 3, 3), (-1, 0, 0)])
def test_sizes_that_do_not_fit(budget, prefix, protect):
    with pytest.raises(ValueError, match=r"prefix \+ protect <= budget < entries"):
        select_entries(torch.zeros(1, 1, 20), torch.arange(20).view(1, 1, -1), budget, prefix=prefix, protect=protect)


def test_bad_scores_are_refused_by_name():
    scores = torch.zeros(1, 1, 20)
    scores[0, 0, 7] = float("nan")
    with pytest.raises(ValueError, match="scores holds NaN or infinite"):
        select_entries(scores, torch.arange(20).view(1, 1, -1), 5)
