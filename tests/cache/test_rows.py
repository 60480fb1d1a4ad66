"""Rows that are moved (beam search) go on as if they had always been where they are now.

Each row has a text of its own, and a history of its own: what it holds and what its queries get from it must be
what the same text gets alone, in a cache in which nothing was ever moved.
"""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import EvictionSchedule, make_policy, ops, policies
from beaconkv.cache import BoundedLayer, LayerStack
from beaconkv.types import AttentionParams, Rope

L, H, H_KV, D, TOKENS = 2, 4, 2, 8, 1500
EVICTING = [name for name, cls in policies().items() if cls.evicts]
SMALL = {"n_recent": 5, "n_beacon": 4}


def rope_at(positions):
    angle = positions.unsqueeze(-1) / 50 ** (torch.arange(D // 2) / (D // 2))
    angle = torch.cat([angle, angle], -1)
    return Rope(angle.cos(), angle.sin(), ops.apply_half)


def small(name):
    """With queries so few that buffers, rings and histories are full soon."""
    known = policies()[name]().__dataclass_fields__
    return make_policy(name, **{setting: value for setting, value in SMALL.items() if setting in known})


class Batch:
    """Layers that are fed texts: lists of chunks, the first one the prompt, each a list of token numbers.

    Attributes:
        texts: per row, what it was fed.
        outputs: per row, what each single token got from attention, (L, H, D).
    """

    vectors = torch.randn(L, TOKENS, H + 2 * H_KV, D, generator=torch.Generator().manual_seed(5))
    sinks = torch.randn(L, H, generator=torch.Generator().manual_seed(6))

    def __init__(self, policy, schedule, rows):
        self.stack = LayerStack([BoundedLayer(policy, schedule, index) for index in range(L)])
        self.texts, self.outputs = [[] for _ in range(rows)], [[] for _ in range(rows)]

    def feed(self, chunks):
        """One chunk for each row, padded on the left where they differ in length."""
        size = max(map(len, chunks))
        ids = torch.tensor([[0] * (size - len(chunk)) + chunk for chunk in chunks])
        real = torch.tensor([[False] * (size - len(chunk)) + [True] * len(chunk) for chunk in chunks])
        seen = torch.tensor([[sum(map(len, text))] for text in self.texts])
        rope = rope_at(seen + (real.cumsum(1) - 1).clamp(min=0))
        is_first, counts = not self.stack.is_allocated, list(map(len, chunks))
        is_step = size == 1 and not is_first
        if not is_step:
            self.stack.unstack()
        outputs = []
        for number, layer in enumerate(self.stack.layers):
            new = self.vectors[number][ids].transpose(1, 2)  # (B, heads, m, D)
            queries, keys, values = new.split([H, H_KV, H_KV], 1)
            queries, keys = ops.rotate(2 * queries, rope), ops.rotate(keys, rope)
            params = AttentionParams(D**-0.5, sinks=self.sinks[number])
            if is_first:
                self.stack.allocate(number, keys, values, counts)
            if is_step:
                inputs = self.stack.append(number, keys, values)
                outputs.append(attended(queries, inputs, params))
                self.stack.observe(number, queries, rope, params)
            else:
                layer.append(keys, values, None if real.all() else real, counts)
                layer.observe(queries, rope, params)
        for row, chunk in enumerate(chunks):
            self.texts[row].append(chunk)
            if is_step:
                self.outputs[row].append(torch.stack([output[row] for output in outputs]))
        self.stack.check_integrity()

    def select_rows(self, index):
        self.stack.select_rows(torch.tensor(index))
        self.texts, self.outputs = ([list(rows[i]) for i in index] for rows in (self.texts, self.outputs))

    def row(self, number):
        """What a row holds, and what was counted of it, by layer."""
        counts = [layer.slab.counts for layer in self.stack.layers]
        held = [layer.slab.held_positions()[number] for layer in self.stack.layers]
        told = [own.state[number] for own in counts]
        return [positions[:, positions[0] >= 0].tolist() for positions in held], told


def attended(queries, inputs, params):
    """(B, H, D): plain attention of one query of each row and head, sinks included."""
    keys, values = (t.repeat_interleave(H // H_KV, 1) for t in (inputs.keys, inputs.values))
    logits = params.scaling * (queries @ keys.transpose(-1, -2)).squeeze(2)
    if inputs.valid is not None:
        logits = logits.masked_fill(~inputs.valid.unsqueeze(1), -torch.inf)
    sinks = params.sinks.expand(logits.shape[0], -1).unsqueeze(-1)
    weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
    return (weights.unsqueeze(2) @ values).squeeze(2)


def assert_alike(batch, number, other, other_number):
    """A row of one batch is where a row of another is."""
    assert batch.row(number) == other.row(other_number)
    mine, theirs = (torch.stack(b.outputs[row]) for b, row in ((batch, number), (other, other_number)))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def new_tokens():
    """Numbers of tokens that no row has had."""
    yield from range(1, TOKENS)


@pytest.mark.parametrize(("index", "steps"), [([2, 2, 0, 1], 0), ([2, 2, 0, 1], 18), ([1, 0, 2], 7), ([2, 0], 18)])
@pytest.mark.parametrize("name", EVICTING)
def test_each_row_goes_on_as_its_source_does(name, index, steps):
    """Against a copy of the cache in which nothing is moved; of two rows with one source, each has its own tokens.

    steps: before the rows are moved.
    """
    schedule, tokens = EvictionSchedule(24, 20, prefix=2, protect=5), new_tokens()
    batch = Batch(small(name), schedule, 3)
    batch.feed([[next(tokens) for _ in range(length)] for length in (3, 19, 41)])
    for _ in range(steps):
        batch.feed([[next(tokens)] for _ in range(3)])
    copies = [deepcopy(batch) for _ in index]
    batch.select_rows(index)
    moved = [[[next(tokens)] for _ in index] for _ in range(24)]
    moved.insert(11, [[next(tokens) for _ in range(4)] for _ in index])  # a second turn
    for chunks in moved:
        batch.feed(chunks)
        for row, (source, copy) in enumerate(zip(index, copies, strict=True)):
            copy.feed([chunks[row] if other == source else [0] * len(chunks[row]) for other in range(3)])
    for row, (source, copy) in enumerate(zip(index, copies, strict=True)):
        assert_alike(batch, row, copy, source)


@pytest.mark.parametrize("name", EVICTING)
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 45), min_size=2, max_size=4),
    moves=st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=4),
            st.sampled_from([1, 2, 7]),
            st.lists(st.integers(2, 9), min_size=4, max_size=4) | st.none(),
        ),
        min_size=1,
        max_size=6,
    ),
    scope=st.sampled_from(["total", "output"]),
    growth=st.sampled_from([0, 3]),
)
def test_any_moves_at_any_time(name, lengths, moves, scope, growth):
    """Against each text alone. moves: (rows, single steps after it, tokens of another turn after that or none)."""
    policy, tokens = small(name), new_tokens()
    schedule = EvictionSchedule(18, 14, scope, prefix=2, protect=5, growth=growth)
    batch = Batch(policy, schedule, len(lengths))
    batch.feed([[next(tokens) for _ in range(length)] for length in lengths])
    for rows, steps, turn in moves:
        batch.select_rows([row % len(batch.texts) for row in rows])
        for _ in range(steps):
            batch.feed([[next(tokens)] for _ in rows])
        if turn is not None:
            batch.feed([[next(tokens) for _ in range(size)] for size in turn[: len(rows)]])
    for row, text in enumerate(batch.texts):
        alone = Batch(policy, schedule, 1)
        for chunk in text:
            alone.feed([chunk])
        assert_alike(batch, row, alone, 0)


def test_the_tests_can_fail():
    """A row that goes on as another one's source does not pass."""
    batch, tokens = Batch(small("beaconkv"), EvictionSchedule(24, 20, prefix=2, protect=5), 2), new_tokens()
    batch.feed([[next(tokens) for _ in range(length)] for length in (9, 31)])
    for _ in range(30):
        batch.feed([[next(tokens)], [next(tokens)]])
    with pytest.raises(AssertionError):
        assert_alike(batch, 0, batch, 1)
