"""The mean rate over a text, from a curve: sums known by hand."""

import pytest


@pytest.fixture
def curve(scripts):
    return scripts("curve").Curve(grows=False)


def test_a_straight_curve_sums_to_what_its_formula_says(curve):
    """A step at t tokens takes 3 + t / 100 ms, measured at three places, over whole intervals of steps."""
    for first in (0, 400, 990):
        curve.add(first, [3 + t / 100 for t in range(first, first + 10)])
    exact = sum(3 + t / 100 for t in range(5, 995)) / 1000
    assert curve.seconds(5, 995) == pytest.approx(exact, rel=1e-12)


def test_beyond_its_ends_it_is_flat_and_between_its_points_straight(curve):
    curve.add(10, [2.0])
    curve.add(20, [4.0])
    assert curve.seconds(0, 11) == pytest.approx(0.001 * 11 * 2)
    assert curve.seconds(15, 16) == pytest.approx(0.003)
    assert curve.seconds(20, 1020) == pytest.approx(4.0)


def test_what_still_grows_has_to_be_measured_to_the_end(scripts):
    curve = scripts("curve").Curve(grows=True)
    curve.add(0, [1.0])
    curve.add(800, [2.0])
    with pytest.raises(ValueError, match="still grows at 800 tokens, the last length measured, and the text has 1,000"):
        curve.seconds(0, 1000)
    curve.add(900, [2.0])
    assert curve.seconds(0, 1000) == pytest.approx(sum(1 + t / 800 for t in range(800)) / 1000 + 0.4)


def test_refusals(scripts, curve):
    with pytest.raises(ValueError, match="no steps were measured at 4 tokens"):
        curve.add(4, [])
    curve.add(4, [1.0])
    with pytest.raises(ValueError, match="points must come in order of length: 2 after 4"):
        curve.add(2, [1.0])
    for text in ("4096,0", "-1,5", "3,3"):
        with pytest.raises(ValueError, match="fills must ascend"):
            scripts("curve").as_lengths(text)


@pytest.mark.parametrize(
    ("tokens", "cycle", "until_full", "steps"),
    [
        (64, None, 0, 64),
        (64, 256, 1900, 64),
        (64, 256, 0, 256),
        (64, 256, 40, 256),
        (300, 256, 0, 512),
        (64, 16, 0, 64),
    ],
)
def test_evictions_are_measured_by_whole_cycles(scripts, tokens, cycle, until_full, steps):
    assert scripts("curve").cycle_steps(tokens, cycle, until_full) == steps
