"""Rows of unequal history that are moved between steps: each goes on as its source does where nothing is moved."""

from copy import deepcopy

import pytest
import torch

from beaconkv import BoundedCache, policies
from tests.tiny import prompt, tiny

SMALL = dict(budget=32, protect=6)
EVICTING = [name for name, cls in policies().items() if cls.evicts]
LENGTHS = (3, 21, 50)


class Batch:
    """A bounded cache and the mask of what it was fed."""

    def __init__(self, model, policy, **settings):
        self.model, self.cache = model, BoundedCache(model, policy, **settings)
        inputs = prompt(*LENGTHS)
        self.mask = inputs["attention_mask"][:, :0]
        self.feed(inputs["input_ids"], inputs["attention_mask"])

    @torch.no_grad()
    def feed(self, ids, real=None):
        """(rows, vocabulary) logits of the last token."""
        self.mask = torch.cat([self.mask, torch.ones_like(ids) if real is None else real], 1)
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self.model(
            ids, attention_mask=self.mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        self.cache.check_integrity()
        return out.logits[:, -1]

    def copy(self):
        other = object.__new__(Batch)
        other.model, other.mask, other.cache = self.model, self.mask, deepcopy(self.cache)
        return other

    def held(self, row):
        """Positions that a row holds, per bounded layer and KV head."""
        layers = [self.cache.positions(host.layer.index)[row] for host in self.cache._bounded]
        return [positions[:, positions[0] >= 0].tolist() for positions in layers]


def by_reorder_cache(cache, index):
    cache.reorder_cache(torch.tensor(index))


def by_indices(cache, index):
    cache.batch_select_indices(torch.tensor(index))


def by_bool(cache, index):
    assert index == sorted(set(index))
    cache.batch_select_indices(torch.tensor([row in index for row in range(len(LENGTHS))]))


def goes_on(model, policy, move, index, **settings):
    batch = Batch(model, policy, **{**SMALL, **settings})
    step = iter(torch.randint(1, 61, (200, 8, 1), generator=torch.Generator().manual_seed(3)))
    for _ in range(20):
        batch.feed(next(step)[: len(LENGTHS)])
    copies = [batch.copy() for _ in index]
    move(batch.cache, index)
    batch.mask = batch.mask[index]
    before = batch.cache.row_evictions()
    for number in range(30):
        ids = next(step)[: len(index)]
        if number == 15:  # a second turn
            ids = ids.repeat(1, 5) + torch.arange(5)
            ids = ids.clamp(max=60)
        logits = batch.feed(ids)
        for row, (source, copy) in enumerate(zip(index, copies, strict=True)):
            expected = copy.feed(ids[row : row + 1].expand(len(LENGTHS), -1))[source]
            torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=1e-4)
    for row, (source, copy) in enumerate(zip(index, copies, strict=True)):
        assert batch.held(row) == copy.held(source)
    return [now - then for now, then in zip(batch.cache.row_evictions(), before, strict=True)]


@pytest.mark.parametrize("name", EVICTING)
def test_every_policy(name):
    assert min(goes_on(tiny("qwen3"), name, by_reorder_cache, [2, 2, 0, 1])) > 3


@pytest.mark.parametrize("family", ["qwen3-yarn", "gemma3", "gpt-oss", "smollm3"])
def test_rotations_and_layers_of_other_kinds(family):
    assert min(goes_on(tiny(family), "beaconkv", by_reorder_cache, [1, 0, 1])) > 3


@pytest.mark.parametrize(
    ("move", "index"), [(by_indices, [2, 0]), (by_indices, [1]), (by_bool, [0, 2]), (by_bool, [1])]
)
def test_rows_that_stay(move, index):
    """The others are gone."""
    assert min(goes_on(tiny(), "beaconkv", move, index)) > 3
    assert min(goes_on(tiny(), "rpc", move, index, scope="output", budget=16)) > 1


def test_repeated_rows():
    """One prompt, several answers: batch_repeat_interleave, as beam search and several sequences do it."""
    model = tiny()
    batch = Batch(model, "beaconkv", **SMALL)
    for number in range(20):
        batch.feed(torch.full((3, 1), 5 + number))
    copies = [batch.copy() for _ in range(2)]
    batch.cache.batch_repeat_interleave(2)
    batch.mask = batch.mask.repeat_interleave(2, 0)
    for number in range(20):
        ids = torch.arange(1, 7)[:, None] + number
        logits = batch.feed(ids)
        for which, copy in enumerate(copies):
            torch.testing.assert_close(logits[which::2], copy.feed(ids[which::2]), atol=1e-4, rtol=1e-4)
    for row in range(6):
        assert batch.held(row) == copies[row % 2].held(row // 2)


def test_a_second_turn_leaves_the_prompt_alone():
    """What comes after the first step of a single token is no prompt: it is neither protected nor without cost."""
    for settings in (dict(prefix="prompt", budget=96), dict(scope="output", budget=32)):
        batch = Batch(tiny(), "recent", protect=6, **settings)
        layers = [host.layer for host in batch.cache._bounded]
        slots = [layer.slab.keys.shape[2] for layer in layers]
        for number in range(12):
            batch.feed(torch.full((3, 1), 9 + number))
        for size in (7, 2, 30):
            batch.feed(torch.arange(1, size + 1).expand(3, -1))
            batch.feed(torch.full((3, 1), 3))
        for number in range(70):
            batch.feed(torch.full((3, 1), 1 + number % 60))
        for layer in layers:
            assert layer.prompts == list(LENGTHS)
        assert [layer.slab.keys.shape[2] for layer in layers] == slots
        for row, length in enumerate(LENGTHS):
            for heads in batch.held(row):
                for positions in heads:
                    assert positions[:length] == list(range(length))
                    # Of the 12 + 7 + 2 + 30 + 3 + 70 that follow, no more than the budget leaves room for.
                    assert len(positions) < settings["budget"] + (length if "scope" in settings else 0)
