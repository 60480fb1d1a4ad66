import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import ops
from beaconkv.types import Rope
from tests.ops.test_rope import ROTATIONS, random_rope
from tests.ops.triton.twins import assert_refused_alike, reference, twin

reference = reference("unrotate_into")
twin = twin("unrotate_into", "rope")


def assert_same(target, start, x, rope):
    """Nothing else is written, and what is differs by rounding at most."""
    expected = target.clone()
    reference(expected, start, x, rope)
    twin(target, start, x, rope)
    rtol, atol = (1e-6, 1e-7) if target.dtype == torch.float32 else (1e-2, 1e-6)
    torch.testing.assert_close(target, expected, rtol=rtol, atol=atol, equal_nan=True)


def rope_of(rows, steps, half, layout, factor, dtype, device):
    ropes = [random_rope(steps, 2 * half, layout, factor, dtype) for _ in range(rows)]
    cos, sin = (torch.cat([getattr(rope, name) for rope in ropes]).to(device) for name in ("cos", "sin"))
    return Rope(cos, sin, layout)


@settings(max_examples=30)
@given(
    m=st.integers(1, 40),
    half=st.integers(1, 9) | st.just(64),
    rest=st.sampled_from([0, 1, 6]),
    layout=st.sampled_from(ROTATIONS),
    one_row=st.booleans(),
    one_step=st.booleans(),
    dtypes=st.tuples(*[st.sampled_from([torch.float32, torch.bfloat16])] * 3),
    start=st.integers(0, 5),
)
def test_equals_the_reference(device, m, half, rest, layout, one_row, one_step, dtypes, start):
    rope = rope_of(1 if one_row else 2, 1 if one_step else m, half, layout, 1.2, dtypes[0], device)
    x = torch.randn(2, 3, m, 2 * half + rest).to(device, dtypes[1])
    target = torch.full((2, 3, start + m + 2, 2 * half + rest), float("nan"), device=device, dtype=dtypes[2])
    assert_same(target, start, x, rope)
    assert not target[:, :, start : start + m].isnan().any()


@pytest.mark.parametrize("layout", ROTATIONS)
def test_cos_and_sin_that_differ_within_a_pair(device, layout):
    """No model has such; but the twin must do what the reference does, not what is usual."""
    size = ops.layout_of(layout).expand(torch.zeros(4)).shape[0]
    cos, sin = torch.rand(2, 5, size, device=device) + 0.5, torch.randn(2, 5, size, device=device)
    norm = ops.unrotate(torch.ones(2, 1, 5, 11, device=device), Rope(cos, sin, layout))
    assert norm.isfinite().all()
    assert_same(
        torch.zeros(2, 3, 9, 11, device=device), 2, torch.randn(2, 3, 5, 11, device=device), Rope(cos, sin, layout)
    )


@pytest.mark.parametrize("layout", ROTATIONS)
def test_strided_arguments(device, layout):
    rope = rope_of(2, 9, 4, layout, 1.0, torch.float32, device)
    rope = Rope(rope.cos.repeat_interleave(2, 1)[:, ::2], rope.sin.mT.contiguous().mT, layout).steps(3, 8)
    x = torch.randn(2, 5, 3, 20, device=device)[..., ::2].transpose(1, 2)
    assert_same(torch.zeros(2, 9, 3, 10, device=device).transpose(1, 2), 4, x, rope)


def test_turned_and_turned_back(device):
    rope = rope_of(1, 7, 8, ops.apply_half, 1.3, torch.bfloat16, device)
    x, target = torch.randn(2, 3, 7, 19, device=device), torch.zeros(2, 3, 7, 19, device=device)
    twin(target, 0, ops.rotate(x, rope), rope)
    torch.testing.assert_close(target, x, atol=1e-5, rtol=1e-5)


def test_other_layouts_go_to_the_reference(device):
    def apply_negated(x, cos, sin):
        return -ops.apply_half(x, cos, sin)

    rope = rope_of(1, 4, 3, ops.apply_half, 1.0, torch.float32, device)
    for layout in (apply_negated, ops.apply_identity):
        assert_same(
            torch.zeros(2, 1, 6, 8, device=device),
            1,
            torch.randn(2, 1, 4, 8, device=device),
            Rope(rope.cos, rope.sin, layout),
        )


def test_what_does_not_fit_is_refused_alike(device):
    rope = rope_of(1, 4, 3, ops.apply_half, 1.0, torch.float32, device)
    x = torch.randn(2, 3, 4, 8, device=device)
    for shape, start in [((2, 3, 6, 8), 3), ((2, 2, 6, 8), 0), ((2, 3, 6, 7), 0)]:
        assert_refused_alike("unrotate_into", twin, RuntimeError, torch.zeros(shape, device=device), start, x, rope)
    target = torch.zeros(2, 3, 6, 8, device=device)
    twin(target, 2, x[:, :, :0], rope.steps(0, 0))
    assert not target.any()
