import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import ops
from beaconkv.types import Rope
from tests.reference import rope_half

ROTATIONS = [layout.apply for layout in ops.LAYOUTS.values()]


def random_rope(n, dim, apply, factor=1.0, dtype=torch.float32):
    inv = 1.0 / 10000 ** (torch.arange(dim // 2) / (dim // 2))
    angle = ops.layout_of(apply).expand(torch.randint(0, 5000, (n, 1)) * inv)
    return Rope((factor * angle.cos())[None].to(dtype), (factor * angle.sin())[None].to(dtype), apply)


@given(
    n=st.integers(1, 7),
    half=st.integers(1, 9),
    rest=st.sampled_from([0, 1, 6]),
    layout=st.sampled_from(ROTATIONS),
    factor=st.sampled_from([1.0, 0.7, 1.35]),
)
def test_unrotate_inverts_rotate(n, half, rest, layout, factor):
    rope = random_rope(n, 2 * half, layout, factor)
    x = torch.randn(2, 3, n, 2 * half + rest)
    turned = ops.rotate(x, rope)
    torch.testing.assert_close(ops.unrotate(turned, rope), x, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(turned[..., 2 * half :], x[..., 2 * half :], rtol=0, atol=0)
    norm = turned[..., : 2 * half].norm(dim=-1) / x[..., : 2 * half].norm(dim=-1)
    torch.testing.assert_close(norm, torch.full_like(norm, factor), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_cos_and_sin_are_divided_out(dtype):
    """cos² + sin² is off by up to 1% in bfloat16; the query before RoPE must not be."""
    rope = random_rope(9, 16, ops.apply_half, 1.2, dtype=dtype)
    x = torch.randn(1, 2, 9, 16)
    torch.testing.assert_close(ops.unrotate(ops.rotate(x, rope), rope), x, atol=1e-5, rtol=1e-5)


def test_turned_in_float32_whatever_comes():
    x, rope = torch.randn(1, 2, 9, 16).bfloat16(), random_rope(9, 16, ops.apply_half, dtype=torch.bfloat16)
    in_full = Rope(rope.cos.float(), rope.sin.float(), rope.apply)
    for turn in (ops.rotate, ops.unrotate):
        assert turn(x, rope).dtype == torch.float32
        assert torch.equal(turn(x, rope), turn(x.float(), in_full))


def test_half_layout_equals_scalar():
    inv = [1.0, 0.31, 0.02]
    angle = 17 * torch.tensor(inv)
    cos, sin = (torch.cat([f(angle)] * 2).view(1, 1, -1) for f in (torch.cos, torch.sin))
    x = torch.randn(8)
    got = ops.rotate(x.view(1, 1, 1, 8), Rope(cos, sin, ops.apply_half)).flatten()
    expected = rope_half(x.tolist(), 17, inv)
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_interleaved_pairs_neighbours():
    cos, sin = torch.full((1, 1, 2), math.cos(0.5)), torch.full((1, 1, 2), math.sin(0.5))
    got = ops.rotate(torch.tensor([1.0, 0.0, 5.0]).view(1, 1, 1, 3), Rope(cos, sin, ops.apply_interleaved)).flatten()
    torch.testing.assert_close(got, torch.tensor([math.cos(0.5), math.sin(0.5), 5.0]))


def test_one_position_serves_all_queries():
    rope = random_rope(1, 8, ops.apply_half)
    x = torch.randn(1, 2, 5, 8)
    each = torch.cat([ops.rotate(x[:, :, i : i + 1], rope) for i in range(5)], 2)
    torch.testing.assert_close(ops.rotate(x, rope), each)


@pytest.mark.parametrize("layout", ops.LAYOUTS.values(), ids=list(ops.LAYOUTS))
def test_layouts_say_which_dimensions_form_a_pair(layout):
    """Each frequency, alone, turns the two dimensions of its own pair and no other."""
    frequencies = 5
    for i in range(frequencies):
        angle = torch.zeros(1, 1, frequencies)
        angle[..., i] = 0.5
        rope = Rope(layout.expand(angle.cos()), layout.expand(angle.sin()), layout.apply)
        x = torch.ones(1, 1, 1, 2 * frequencies + 3)
        first, second = layout.pairs((ops.rotate(x, rope) - x)[..., : 2 * frequencies])
        assert [pair.nonzero()[:, -1].tolist() for pair in (first, second)] == [[i], [i]]
        for of_pair in layout.of_pairs(rope.cos):
            torch.testing.assert_close(of_pair, angle.cos())


def test_a_name_for_every_layout():
    assert [ops.layout_of(layout.apply) for layout in ops.LAYOUTS.values()] == list(ops.LAYOUTS.values())
    assert ops.layout_of(ops.apply_identity) is None
    assert ops.layout_of(lambda x, cos, sin: x) is None


TWICE = [name for name in ops.LAYOUTS if name != "half_of_once"]  # whose cos and sin have one size


@pytest.mark.parametrize("layout", TWICE)
@pytest.mark.parametrize("other", TWICE)
def test_only_the_own_layout_recovers_a_query(layout, other):
    x = torch.randn(2, 3, 1, 20)
    seen = [random_rope(1, 16, ops.LAYOUTS[layout].apply) for _ in range(3)]
    taken = [Rope(rope.cos, rope.sin, ops.LAYOUTS[other].apply) for rope in seen]
    pairs = [(ops.rotate(x, rope), guess) for rope, guess in zip(seen, taken, strict=True)]
    assert ops.same_before_rope(pairs, 1e-4) == (layout == other)
