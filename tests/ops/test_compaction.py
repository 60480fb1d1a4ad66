import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import fill_holes, fill_holes_source, gather_entries
from beaconkv.types import Rows


@st.composite
def cases(draw):
    n = draw(st.integers(2, 40))
    return n, draw(st.integers(1, n - 1)), draw(st.integers(0, 6)), draw(st.integers(0, 999))


def random_keep(n, kept, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(n, generator=g)[:kept].sort().values for _ in range(6)]).view(2, 3, kept)


@given(cases())
def test_fill_holes_keeps_the_survivors_and_moves_few(case):
    n, kept, spare, seed = case
    keep = random_keep(n, kept, seed)
    source = fill_holes_source(keep, n)
    assert torch.equal(source.sort(-1).values, keep)  # every survivor, once
    moved = source != torch.arange(kept)
    assert moved.sum(-1).max() <= n - kept
    slab = torch.randn(2, 3, n + spare, 4)
    slab[:, :, n:] = torch.nan  # nothing beyond the stored part may be touched or read
    flat = torch.arange(n + spare).expand(2, 3, -1).clone()
    before = slab.clone()
    fill_holes([slab, flat], source, n)
    assert torch.equal(slab[:, :, :kept], gather_entries(before, source))
    assert torch.equal(flat[:, :, :kept], source)
    assert torch.equal(slab[:, :, kept:n], before[:, :, kept:n])
    assert slab[:, :, n:].isnan().all()


@given(cases())
def test_rows_that_are_not_named_stay(case):
    n, kept, spare, seed = case
    source = fill_holes_source(random_keep(n, kept, seed), n)
    slab = torch.randn(5, 3, n + spare, 4)
    before = slab.clone()
    fill_holes([slab], source, n, Rows([1, 3], torch.tensor([1, 3])))
    assert torch.equal(slab[[1, 3], :, :kept], gather_entries(before[[1, 3]], source))
    assert torch.equal(slab[[0, 2, 4]], before[[0, 2, 4]])
