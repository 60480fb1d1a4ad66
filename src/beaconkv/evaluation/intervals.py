"""Uncertainty of a mean: intervals over problems, and paired differences between two methods."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Scores = Mapping[tuple[Hashable, Hashable], float]
"""Score by (problem, run)."""

_CHUNK = 1 << 22  # resampled numbers held at a time


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Attributes:
        mean: mean over problems of the mean over a problem's runs.
        low, high: ends of the interval.
        problems, samples: how many problems, how many (problem, run) pairs.
        level: level of the interval, 0.95 for 95%.
        method: "bootstrap", or "exact" where all problems score alike.
    """

    mean: float
    low: float
    high: float
    problems: int
    samples: int
    level: float
    method: str


@dataclass(frozen=True)
class Difference(Estimate):
    """A paired difference, first method minus second."""

    @property
    def verdict(self) -> str:
        """Of the first method: "better", "worse" or "undecided".

        It is undecided where even a unanimous vote of the problems could be chance (sign test): five problems
        or fewer at 95%.
        """
        if 2.0 ** (1 - self.problems) > 1 - self.level or self.low <= 0 <= self.high:
            return "undecided"
        return "better" if self.low > 0 else "worse"


def mean_interval(
    scores: Scores, *, upper: float = 1.0, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Mean score with an interval by bootstrap over problems.

    Problems are drawn, each with all its runs: the runs of one problem are correlated, and treating them as independent
    would make the interval too narrow. Quantiles follow the expanded percentile interval (Hesterberg, What
    Teachers Should Know about the Bootstrap, 2015, section 5.3), which corrects the narrowness with few problems.

    Where all problems have the same score (0%, 100%) every resample is equal, and the interval would be a point.
    There it is exact instead: if n problems out of n gave the value c, the share u of problems that give
    another value is at most 1 - ((1 - level) / 2)^(1/n) (Clopper-Pearson), and their scores may be anything
    from 0 to ``upper``.

    Args:
        scores: Score in [0, upper] by (problem, run); True and False are 1 and 0. The order does not matter.
        upper: Maximum possible score: 1 for accuracy, the length limit for output lengths.

    Raises:
        ValueError: no scores; a score outside [0, upper]; level or resamples out of range.
    """
    _check(scores, "scores", upper)
    values = _per_problem(scores)
    return Estimate(
        *_interval(values, 0.0, upper, level, resamples, seed), values.size, len(scores), level, _how(values)
    )


def paired_difference(
    first: Scores, second: Scores, *, upper: float = 1.0, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Mean of ``first - second`` over the same (problem, run) pairs, with an interval as in ``mean_interval``.

    Raises:
        ValueError: a pair that only one side has; otherwise as ``mean_interval``.
    """
    _check(first, "first", upper)
    _check(second, "second", upper)
    for name, has, lacks in (("second", first, second), ("first", second, first)):
        missing = sorted(has.keys() - lacks.keys(), key=repr)
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise ValueError(f"{name} lacks {len(missing)} of {len(has)} (problem, run) pairs: {shown}")
    values = _per_problem({pair: float(first[pair]) - float(second[pair]) for pair in first})
    interval = _interval(values, -upper, upper, level, resamples, seed)
    return Difference(*interval, values.size, len(first), level, _how(values))


def _check(scores: Scores, name: str, upper: float) -> None:
    if not scores:
        raise ValueError(f"{name}: no scores")
    for pair, score in scores.items():
        if not 0 <= score <= upper:  # NaN too
            raise ValueError(f"{name}: the score of {pair!r} must be in [0, {upper:g}], got {score!r}")


def _per_problem(scores: Scores) -> np.ndarray:
    """(problems,) float64: mean over runs. Sorted by value, so that the order of the input has no effect."""
    runs: dict[Hashable, list[float]] = {}
    for (problem, _), score in scores.items():
        runs.setdefault(problem, []).append(float(score))
    return np.sort([np.mean(np.sort(values)) for values in runs.values()])


def _how(values: np.ndarray) -> str:
    return "exact" if _alike(values) else "bootstrap"


def _alike(values: np.ndarray) -> bool:
    return bool(np.isclose(values[0], values[-1], rtol=0, atol=1e-12))


def _interval(
    values: np.ndarray, least: float, most: float, level: float, resamples: int, seed: int
) -> tuple[float, float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    if resamples < 100:
        raise ValueError(f"resamples must be at least 100, got {resamples}")
    mean, tail = float(values.mean()), (1 - level) / 2
    if _alike(values):
        unseen = 1 - tail ** (1 / values.size)
        return mean, mean * (1 - unseen) + unseen * least, mean * (1 - unseen) + unseen * most
    tail = _expanded(tail, values.size)
    low, high = np.quantile(_resampled_means(values, resamples, seed), [tail, 1 - tail])
    return mean, float(min(low, mean)), float(max(high, mean))


def _resampled_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    rng, size = np.random.default_rng(seed), values.size
    step = max(1, _CHUNK // size)
    rows = [min(step, resamples - done) for done in range(0, resamples, step)]
    return np.concatenate([values[rng.integers(0, size, (n, size), dtype=np.int32)].mean(1) for n in rows])


def _expanded(tail: float, size: int) -> float:
    """Tail of the resampled means that gives a t interval its width if the scores are normal."""
    normal, df = NormalDist(), size - 1
    z = normal.inv_cdf(tail)
    # Student's t quantile from the normal one (Abramowitz and Stegun 26.7.5)
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    return normal.cdf(t * (size / df) ** 0.5)
