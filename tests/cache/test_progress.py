"""A row's counter equals counting from the definition, what a layer does, and does not depend on portions of tokens."""

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import EvictionPolicy, EvictionSchedule, ops
from beaconkv.cache import BoundedLayer, Progress, most_slots
from beaconkv.policies import LayerState
from beaconkv.types import AttentionParams, Rope


@st.composite
def schedules(draw):
    prefix, protect = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    budget = draw(st.integers(prefix + protect + 2, 24))
    budget_min = draw(st.integers(max(1, prefix + protect), budget - 1))
    scope, growth = draw(st.sampled_from(["total", "output"])), draw(st.sampled_from([0, 0, 2]))
    early = draw(st.integers(0, budget - budget_min - 1))
    return EvictionSchedule(budget, budget_min, scope, prefix, protect, growth=growth, early=early)


class Told(LayerState):
    """Remembers when the next eviction was said to come."""

    def observe(self, queries, rope, until_full, rows, view):
        (self.left,) = until_full


@dataclass(frozen=True)
class Newest(EvictionPolicy):
    """Not registered."""

    def new_state(self, batch):
        return Told()

    def score(self, view, state):
        return view.positions.float()


def feed(layer, tokens):
    keys = torch.randn(1, 1, tokens, 2)
    still = Rope(torch.ones(1, tokens, 2), torch.zeros(1, tokens, 2), ops.apply_half)
    layer.append(keys, keys)
    layer.observe(torch.randn(1, 1, tokens, 2), still, AttentionParams(1.0))


def counted(schedule, prompt, chunk, steps):
    """Entries held after each chunk of the prompt and each decode step, from the definition of a schedule alone."""
    budget, budget_min, held, evictions, stored = schedule.budget, schedule.budget_min, [], 0, 0
    if schedule.scope == "output":
        budget, budget_min = budget + prompt, budget_min + prompt
    for start in range(0, prompt, chunk):
        size = min(chunk, prompt - start)
        stored += size
        grown = evictions * schedule.growth
        early = schedule.early if evictions == 0 else 0
        if size == 1:  # a step like any other
            over = stored - (budget + grown - early)
            left = budget_min + grown + over
        else:  # evicted once in full, so that the next eviction of a step comes early
            over = stored - (budget + grown)
            left = budget - schedule.early + grown if schedule.early else budget_min + grown
        if over >= 0:
            stored, evictions = left, evictions + 1
        held.append(stored)
    for _ in range(steps):
        stored += 1
        grown = evictions * schedule.growth
        over = stored - (budget + grown - (schedule.early if evictions == 0 else 0))
        if over >= 0:
            stored, evictions = budget_min + grown + over, evictions + 1
        held.append(stored)
    return held


@settings(max_examples=300)
@given(schedules(), st.integers(1, 60), st.just(1) | st.integers(1, 12), st.integers(0, 60))
def test_equals_counting_from_the_definition(schedule, prompt, chunk, steps):
    progress, held = Progress(schedule, prompt, chunk), []
    for tokens in [min(chunk, prompt - start) for start in range(0, prompt, chunk)] + [1] * steps:
        progress.advance(tokens)
        held.append(progress.settled)
    assert held == counted(schedule, prompt, chunk, steps)


@given(schedules(), st.integers(1, 12), st.integers(1, 30))
def test_no_more_slots_than_a_row_can_need(schedule, chunk, tokens):
    """The bound is that of a row one entry below the budget, a chunk almost complete, and ``tokens`` more."""
    bound = most_slots(schedule, chunk, tokens)
    if schedule.growth or schedule.scope == "output":
        assert bound is None
    else:
        assert bound == (schedule.budget - 1) + (chunk - 1) + tokens


@settings(max_examples=200)
@given(schedules(), st.integers(1, 40), st.just(1) | st.integers(1, 12), st.integers(0, 40))
def test_as_a_layer_does(schedule, prompt, chunk, steps):
    layer, progress = BoundedLayer(Newest(), schedule), Progress(schedule, prompt, chunk)
    layer.allocate(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), [prompt])
    for tokens in [min(chunk, prompt - start) for start in range(0, prompt, chunk)] + [1] * steps:
        feed(layer, tokens)
        chunks = progress.advance(tokens)
        assert [chunk.left for chunk in chunks] == [layer.state.left]
        evictions = progress.evictions + (progress.due is not None)
        assert (layer.slab.lengths, layer.slab.num_seen, layer.num_evictions) == (
            [progress.settled],
            [progress.seen],
            [evictions],
        )


@given(schedules(), st.integers(1, 40), st.integers(1, 12), st.lists(st.integers(1, 30), max_size=12))
def test_however_tokens_are_dealt_out(schedule, prompt, chunk, deals):
    whole, dealt = (Progress(schedule, prompt, chunk) for _ in range(2))
    expected, chunks, bound = whole.advance(sum(deals)), [], most_slots(schedule, chunk, max(deals, default=1))
    for tokens in deals:
        assert bound is None or dealt.settled + tokens <= bound
        chunks += dealt.advance(tokens)
    assert vars(dealt) == vars(whole)
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks)][: len(chunks)]
    assert {chunk.stop: chunk.keep for chunk in expected if chunk.keep is not None} == {
        chunk.stop: chunk.keep for chunk in chunks if chunk.keep is not None
    }
    for chunk in chunks:
        assert chunk.left is not None or chunk.keep is None
        assert (chunk.keep is not None) == (chunk.left is not None and chunk.left <= 0)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 60))
def test_without_a_budget_nothing_is_ever_due(prompt, chunk, steps):
    progress = Progress(EvictionSchedule(None), prompt, chunk)
    chunks = progress.advance(prompt + steps)
    assert (progress.stored, progress.due, progress.evictions) == (prompt + steps, None, 0)
    assert all(chunk.keep is None for chunk in chunks)
