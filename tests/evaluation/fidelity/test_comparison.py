"""Means, intervals and paired differences of fidelity records."""

import math
import random

import pytest

from beaconkv.evaluation.fidelity.comparison import compare


def record(policy, budget, text, kl, mass_lost=0.1):
    return {
        "policy": policy, "budget": budget, "text": text, "kl": kl, "agreement": 1 - kl, "nll_full": 2.0, "nll": 2 + kl,
        "mass_lost": mass_lost, "evictions": 4, "kv_bytes": 10, "peak_kv_bytes": 12, "state_bytes": 3,
        "tokens_per_second": 5.0,
    }  # fmt: skip


def test_means_and_pairs():
    rows = compare(
        [
            record("a", 64, "x", 0.2), record("a", 64, "y", 0.4),
            record("b", 64, "y", 0.1), record("b", 64, "x", 0.3),  # another order
            record("a", 96, "x", 0.1, None), record("full", None, "x", 0.0),
        ],
        against="b",
    )  # fmt: skip
    a, b, alone, full = rows
    assert [(r["policy"], r["budget"], r["texts"]) for r in rows] == [
        ("a", 64, 2), ("b", 64, 2), ("a", 96, 1), ("full", None, 1),
    ]  # fmt: skip
    assert a["kl"]["mean"] == pytest.approx(0.3)
    assert (a["kl"]["low"], a["kl"]["high"]) == (pytest.approx(0.2), pytest.approx(0.4))
    assert a["difference"]["kl"]["mean"] == pytest.approx(0.1)  # (0.2 - 0.3 + 0.4 - 0.1) / 2
    assert a["difference"]["kl"]["low"] == pytest.approx(-0.1)  # text x with text x
    assert a["difference"]["agreement"]["mean"] == pytest.approx(-0.1)
    assert a["perplexity"]["mean"] == pytest.approx((math.exp(2.2) + math.exp(2.4)) / 2)
    assert a["perplexity_full"]["mean"] == pytest.approx(math.exp(2))
    assert a["evictions"] == 4
    assert alone["kl"] == {"mean": 0.1, "low": None, "high": None}
    assert alone["mass_lost"] is None
    for row in (b, alone, full):
        assert row["difference"] == {"kl": None, "agreement": None, "mass_lost": None}
    with pytest.raises(ValueError, match="nothing was measured of 'c'; measured: a, b, full"):
        compare([record("a", 64, "x", 0), record("b", 64, "x", 0), record("full", None, "x", 0)], against="c")


def test_the_interval_covers_the_truth():
    draw, covered = random.Random(0), 0
    for trial in range(200):
        values = [draw.gauss(0.5, 0.2) for _ in range(30)]
        (row,) = compare([record("a", 64, str(i), v) for i, v in enumerate(values)], seed=trial)
        covered += row["kl"]["low"] <= 0.5 <= row["kl"]["high"]
    assert 175 <= covered <= 199
