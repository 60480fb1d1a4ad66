import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.evaluation import mean_interval, paired_difference


def scores(values):
    """values: (problems, runs)"""
    return {(f"p{p}", r): float(v) for p, row in enumerate(values) for r, v in enumerate(row)}


def simulated(rng, problems, runs):
    """Problems of very different difficulty; the expected score of a new one is 1/2."""
    return rng.random((problems, runs)) < rng.beta(0.5, 0.5, (problems, 1))


@pytest.mark.parametrize(("problems", "runs"), [(30, 1), (30, 4), (100, 4), (8, 4)])
def test_coverage(problems, runs):
    """95% of the intervals hold the truth; 300 trials have a standard error of 1.3%."""
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        estimate = mean_interval(scores(simulated(rng, problems, runs)), resamples=500, seed=trial)
        hits += estimate.low <= 0.5 <= estimate.high
    assert 0.90 <= hits / 300 <= 0.985


def test_few_problems_give_the_width_of_a_t_interval():
    """Ten problems: 2.262 standard errors each way, where a plain bootstrap has 1.96 times the root of 9/10."""
    values = np.random.default_rng(0).random(10)
    estimate = mean_interval(scores(values[:, None]))
    t_interval = 2 * 2.262 * values.std(ddof=1) / 10**0.5
    assert estimate.high - estimate.low == pytest.approx(t_interval, rel=0.06)


def test_runs_of_one_problem_are_not_counted_as_independent():
    """The same answers sixteen times tell no more than once."""
    rng = np.random.default_rng(0)
    once = simulated(rng, 40, 1)
    a, b = mean_interval(scores(once)), mean_interval(scores(np.repeat(once, 16, 1)))
    assert (a.low, a.high) == pytest.approx((b.low, b.high))
    assert (a.samples, b.samples) == (40, 640)


def test_paired_is_narrower_than_unpaired():
    rng = np.random.default_rng(0)
    skill = rng.random((60, 1))
    base = rng.random((60, 4))
    a, b = base < skill, base < skill - 0.1
    pair = paired_difference(scores(a), scores(b))
    alone = [mean_interval(scores(x)) for x in (a, b)]
    unpaired = np.hypot(*[x.high - x.low for x in alone])
    assert pair.high - pair.low < 0.6 * unpaired
    assert pair.mean == pytest.approx(alone[0].mean - alone[1].mean)
    assert pair.verdict == "better"
    assert paired_difference(scores(b), scores(a)).verdict == "worse"


def test_false_verdicts_are_rare():
    """Two equal methods: a verdict in about 5% of the trials."""
    rng = np.random.default_rng(0)
    told = 0
    for trial in range(300):
        skill = rng.beta(0.5, 0.5, (30, 1))
        a, b = (scores(rng.random((30, 2)) < skill) for _ in range(2))
        told += paired_difference(a, b, resamples=500, seed=trial).verdict != "undecided"
    assert told / 300 < 0.09


@pytest.mark.parametrize("problems", [1, 5, 30, 500])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_no_interval_is_a_point(problems, value):
    values = np.full((problems, 2), value) if value != 0.5 else np.tile([0.0, 1.0], (problems, 1))
    estimate = mean_interval(scores(values))
    assert (estimate.mean, estimate.method) == (value, "exact")
    assert 0 <= estimate.low <= value <= estimate.high <= 1
    assert estimate.high - estimate.low > 0.3 / problems


def test_nothing_right_of_thirty():
    """Clopper-Pearson: if the rate were 11.57%, 0 of 30 would happen in 2.5% of all cases."""
    nothing, everything = (mean_interval(scores(np.full((30, 1), v))) for v in (0.0, 1.0))
    assert (nothing.low, round(nothing.high, 4)) == (0.0, 0.1157)
    assert (1 - nothing.high) ** 30 == pytest.approx(0.025)
    assert (everything.low, everything.high) == pytest.approx((1 - nothing.high, 1.0))


def test_equal_outputs_cannot_be_told_apart():
    same = scores(simulated(np.random.default_rng(0), 30, 2))
    difference = paired_difference(same, same)
    assert (difference.mean, difference.verdict, difference.method) == (0.0, "undecided", "exact")
    assert -0.12 < difference.low < 0 < difference.high < 0.12


@pytest.mark.parametrize(("problems", "verdict"), [(5, "undecided"), (6, "better")])
def test_few_problems_tell_nothing(problems, verdict):
    """Not even a unanimous vote; the bootstrap alone would be sure of itself with two."""
    right, wrong = np.ones((problems, 1)), np.zeros((problems, 1))
    assert paired_difference(scores(right), scores(wrong)).verdict == verdict
    second = np.linspace(0.1, 0.4, problems)[:, None]
    assert paired_difference(scores(second * 2), scores(second)).verdict == verdict


@given(st.integers(2, 12), st.integers(1, 3), st.integers(0, 2**32), st.randoms())
def test_order_does_not_matter(problems, runs, seed, random):
    values = np.random.default_rng(seed).random((problems, runs))
    ordered = scores(values)
    items = list(ordered.items())
    random.shuffle(items)
    assert mean_interval(ordered, resamples=200) == mean_interval(dict(items), resamples=200)
    half = {pair: score / 2 for pair, score in items}
    assert paired_difference(ordered, half, resamples=200) == paired_difference(dict(items), half, resamples=200)


def test_one_seed_gives_one_result():
    values = scores(np.random.default_rng(0).random((50, 2)))
    a, again, b = (mean_interval(values, seed=seed) for seed in (0, 0, 1))
    assert a == again
    assert a.mean == b.mean
    assert (a.low, a.high) != (b.low, b.high)
    assert (a.low, a.high) == pytest.approx((b.low, b.high), abs=0.01)


@given(st.integers(2, 30), st.integers(0, 2**32), st.floats(0.5, 40_000))
def test_scale_and_sign(problems, seed, upper):
    """Lengths are as good as scores, and a difference turned round is its negative."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 3, (problems, 2)) / 2 for _ in range(2))
    unit, scaled = mean_interval(scores(a), resamples=200), mean_interval(scores(a * upper), upper=upper, resamples=200)
    assert (scaled.low, scaled.high) == pytest.approx((unit.low * upper, unit.high * upper))
    forth, back = (paired_difference(scores(x), scores(y), resamples=4000) for x, y in ((a, b), (b, a)))
    assert forth.mean == pytest.approx(-back.mean)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=0.06)
    assert forth.low <= forth.mean <= forth.high


def test_unequal_numbers_of_runs_weigh_problems_alike():
    assert mean_interval({("a", 0): 1, ("a", 1): 1, ("a", 2): 1, ("b", 0): 0}).mean == 0.5


def test_it_is_small():
    """10,000 resamples of 5,000 problems would take 400 MB at once."""
    values = scores(simulated(np.random.default_rng(0), 5000, 1))
    tracemalloc.start()
    mean_interval(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150e6


def test_refusals():
    good = scores([[1.0], [0.0]])
    with pytest.raises(ValueError, match=r"second lacks 1 of 2 \(problem, run\) pairs: \('p1', 0\)"):
        paired_difference(good, {("p0", 0): 1})
    with pytest.raises(ValueError, match=r"first lacks 5 of 7 .*\('x', 0\), \('x', 1\), \('x', 2\), \.\.\."):
        paired_difference(good, good | {("x", r): 1 for r in range(5)})
    with pytest.raises(ValueError, match="scores: no scores"):
        mean_interval({})
    for bad in (float("nan"), -0.1, 1.5):
        with pytest.raises(ValueError, match=rf"the score of \('p', 0\) must be in \[0, 1\], got {bad}"):
            mean_interval({("p", 0): bad})
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        mean_interval(good, level=95)
    with pytest.raises(ValueError, match="resamples must be at least 100, got 10"):
        mean_interval(good, resamples=10)
