import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beaconkv.evaluation import Loop, repetition_loop
from tests.evaluation.data import rows

words = st.lists(st.integers(0, 5), max_size=60)


@given(words, st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(4, 12), st.data())
def test_planted_loops_are_found(before, period, repeats, data):
    """Even if they were cut off in the middle of a round."""
    part = data.draw(st.integers(0, len(period) - 1))
    planted = len(period) * repeats + part
    tokens = before + period * repeats + period[:part]
    loop = repetition_loop(tokens, min_tokens=min(planted, 64))
    assert loop is not None
    assert loop.period <= len(period)
    assert loop.repeats == (len(tokens) - loop.start) // loop.period >= 4
    tail = tokens[loop.start :]
    assert tail[loop.period :] == tail[: -loop.period]
    assert loop.start == 0 or tokens[loop.start - 1] != tokens[loop.start - 1 + loop.period]


@given(words, st.integers(2, 6), st.integers(1, 20), st.integers(1, 40))
def test_it_is_the_shortest_period_by_definition(tokens, min_repeats, max_period, min_tokens):
    def run(period):
        return next(s for s in range(len(tokens)) if tokens[s + period :] == tokens[s : len(tokens) - period])

    expected = None
    for period in range(1, min(max_period, len(tokens) // min_repeats) + 1):
        size = len(tokens) - run(period)
        if size >= min_repeats * period and size >= min_tokens:
            expected = Loop(period, size // period, run(period))
            break
    assert repetition_loop(tokens, min_repeats, max_period, min_tokens) == expected


@given(st.integers(0, 2**32), st.integers(0, 3000))
def test_random_tokens_are_no_loop(seed, size):
    rng = random.Random(seed)
    assert repetition_loop([rng.randrange(1000) for _ in range(size)]) is None


@given(st.integers(0, 10**6), st.integers(20, 400), st.sampled_from(["{},", "{}, ", "Case {}: no.\n", "{} is odd; "]))
def test_counting_is_no_loop(first, rounds, template):
    text = "".join(template.format(n) for n in range(first, first + rounds))
    assert repetition_loop(text) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(4, 8))
def test_a_loop_that_was_left_is_none(period, repeats):
    tokens = period * repeats + list(range(100, 130))
    assert repetition_loop(tokens, min_tokens=1) is None


def test_examples():
    assert repetition_loop("ab" + "So, 121.\n" * 10) == Loop(9, 10, 2)
    assert repetition_loop("x" + "-" * 63) is None  # a rule in a text
    assert repetition_loop("x" + "-" * 64) == Loop(1, 64, 1)
    assert repetition_loop("abc" * 3, min_tokens=1) is None
    assert repetition_loop("abc" * 3, min_repeats=3, min_tokens=1) == Loop(3, 3, 0)
    assert repetition_loop("ab" * 50, max_period=1) is None
    assert repetition_loop([]) is None


@pytest.mark.parametrize("tokens", ["a" * 33_000 + "b", ("a" * 511 + "b") * 60 + "c", "ab" * 16_000 + "a" * 200 + "b"])
def test_hard_texts_take_as_few_comparisons_as_promised(tokens):
    Counted.comparisons = 0
    assert repetition_loop(list(map(Counted, tokens))) is None
    assert 512 <= Counted.comparisons <= 512 * max(4 * 512, 64)


class Counted(str):
    """A token that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.comparisons += 1
        return str.__eq__(self, other)


def test_a_real_loop():
    """The one trace that ran into its limit went round in circles, no other did."""
    traces = rows("r1_math500_traces.jsonl")
    looping = [row["n_tokens"] for row in traces if repetition_loop(row["response"])]
    assert looping == [32768]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(min_repeats=1), "min_repeats must be at least 2, got 1"),
        (dict(max_period=0), "max_period must be at least 1, got 0"),
        (dict(min_tokens=0), "min_tokens must be at least 1, got 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        repetition_loop("aaaa", **settings)
