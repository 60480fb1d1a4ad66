from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.ops import key_redundancy
from tests.policies.scalar import redundancy

MODULE = import_module("beaconkv.ops.redundancy")


@given(
    n=st.integers(1, 24),
    threshold=st.sampled_from([-1.5, 0.0, 0.5, 0.95, 2.0]),
    block=st.sampled_from([1, 5, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_equals_scalar_in_any_slot_order(n, threshold, block, dtype, seed):
    g = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, 2, n, 3, generator=g).to(dtype)  # few dimensions: many keys are alike
    positions = torch.stack([torch.randperm(3 * n, generator=g)[:n] for _ in range(4)]).view(2, 2, n).int()
    before, MODULE.BLOCK = MODULE.BLOCK, block
    try:
        got = key_redundancy(keys, positions, threshold)
    finally:
        MODULE.BLOCK = before
    assert got.dtype == torch.float32
    for row in range(2):
        for head in range(2):
            table = dict(zip(positions[row, head].tolist(), keys[row, head].double().tolist(), strict=True))
            expected = redundancy(table, threshold)
            for p, value in zip(positions[row, head].tolist(), got[row, head].tolist(), strict=True):
                assert value == pytest.approx(expected[p], rel=1e-5)


def test_of_keys_that_repeat_each_other_the_newest_is_spared():
    keys = torch.eye(8)[[0, 1, 1, 1, 1, 2, 3, 4]].view(1, 1, 8, 8)
    order = torch.tensor([5, 3, 0, 7, 6, 1, 4, 2])  # slots are not in order of time
    got = key_redundancy(keys[:, :, order], order.view(1, 1, -1).int())
    by_time = torch.empty(8).scatter_(0, order, got.flatten())
    assert by_time.sum() == pytest.approx(1)
    # Of the four alike, the newest is exempt in the three other rows, and pays in none but its own.
    assert by_time[1] == by_time[2] > by_time[4]
    assert by_time[4] == pytest.approx(by_time[0])


def test_a_cosine_of_just_the_threshold_is_not_alike():
    """Exact in binary: nothing is spared, and both keys pay the same."""
    keys = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, -1], [0, 0, 0, 0]]).view(1, 1, 3, 4)
    got = key_redundancy(keys, torch.arange(3).view(1, 1, -1), 0.5)
    torch.testing.assert_close(got, (torch.tensor([0.5, 0.5, 0.0]) / 3).softmax(0).view(1, 1, -1))
    spared = key_redundancy(keys, torch.arange(3).view(1, 1, -1), 0.49)
    torch.testing.assert_close(spared, torch.full((1, 1, 3), 1 / 3))


def test_zero_keys_repeat_nothing():
    got = key_redundancy(torch.zeros(1, 1, 5, 4), torch.arange(5).view(1, 1, -1))
    assert torch.equal(got, torch.full((1, 1, 5), 0.2))
