import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv.ops import fill_holes_source
from beaconkv.types import Rows
from tests.ops.test_compaction import random_keep
from tests.ops.triton.twins import reference, twin

reference = reference("fill_holes")
twin = twin("fill_holes", "compaction")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool, torch.uint8]


def entries(shape, dtype, g):
    return torch.randint(-99, 99, shape, generator=g).to(dtype)


def assert_same(tensors, source, num_entries, rows=None):
    expected = [t.clone() for t in tensors]
    reference(expected, source, num_entries, rows)
    assert twin(tensors, source, num_entries, rows) is None
    for tensor, should in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor, should, rtol=0, atol=0, equal_nan=True)


@st.composite
def cases(draw):
    n = draw(st.integers(2, 60))
    kept = draw(st.integers(1, n - 1) | st.integers(max(1, n - 5), n - 1))
    return n, kept, draw(st.integers(0, 6)), draw(st.integers(0, 999))


@settings(max_examples=30)
@given(case=cases(), dtype=st.sampled_from(DTYPES), dim=st.integers(1, 9), named=st.booleans())
def test_equals_the_reference(device, case, dtype, dim, named):
    n, kept, spare, seed = case
    g = torch.Generator().manual_seed(seed)
    source = fill_holes_source(random_keep(n, kept, seed), n).to(device)
    rows = Rows([1, 3], torch.tensor([1, 3], device=device)) if named else None
    batch = 5 if named else 2
    slab = torch.full((batch, 3, n + spare, dim), float("nan"), device=device)
    slab[:, :, :n] = torch.randn(batch, 3, n, dim, generator=g)
    tensors = [slab, entries((batch, 3, n + spare, dim), dtype, g).to(device)]
    tensors.append(torch.arange(n + spare, device=device, dtype=torch.int32).expand(batch, 3, -1).clone())
    assert_same(tensors, source, n, rows)


@pytest.mark.parametrize("trailing", [(), (128,), (200,), (3, 5), (1,)])
def test_entries_of_any_shape(device, trailing):
    source = fill_holes_source(random_keep(30, 20, 3), 30).to(device)
    assert_same([torch.randn(2, 3, 33, *trailing).to(device)], source, 30)


def test_strided_slabs(device):
    source = fill_holes_source(random_keep(30, 20, 3), 30).to(device)
    heads_exchanged = torch.randn(2, 30, 3, 8, device=device).transpose(1, 2)
    entries_apart = torch.randn(2, 3, 30, 8, device=device)[..., ::2]
    every_second = torch.randn(4, 3, 60, 8, device=device)[::2, :, ::2]
    assert_same([heads_exchanged, every_second], source.transpose(0, 1).contiguous().transpose(0, 1), 30)
    assert_same([entries_apart, heads_exchanged], source, 30)


def test_numbers_are_moved_bit_by_bit(device):
    """A payload of NaN survives, and so do subnormal numbers."""
    bits = torch.randint(-(2**31), 2**31 - 1, (2, 3, 30, 4), dtype=torch.int32).to(device)
    source = fill_holes_source(random_keep(30, 20, 3), 30).to(device)
    as_floats = bits.clone().view(torch.float32)
    reference([bits], source, 30)
    twin([as_floats], source, 30)
    assert torch.equal(as_floats.view(torch.int32), bits)


def test_only_holes_change(device):
    source = fill_holes_source(random_keep(30, 20, 3), 30).to(device)
    slab = torch.randn(2, 3, 30, 4, device=device)
    before = slab.clone()
    twin([slab], source, 30)
    changed = (slab != before).any(-1)
    assert torch.equal(changed[:, :, :20], source >= 20)
    assert not changed[:, :, 20:].any()


def test_nothing_to_move(device):
    twin([], fill_holes_source(random_keep(9, 5, 0), 9).to(device), 9)
    empty = torch.randn(0, 3, 9, 4, device=device)
    assert_same([empty], torch.empty(0, 3, 5, dtype=torch.int64, device=device), 9)
