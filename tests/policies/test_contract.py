"""What every registered policy promises, whoever wrote it. A new policy file is tested here by itself."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from beaconkv import EvictionPolicy, EvictionSchedule, ops, policies
from beaconkv.cache import BoundedLayer
from beaconkv.policies import LayerState
from beaconkv.types import AttentionParams, Rope

H, H_KV, D, VD = 6, 2, 8, 5
BUDGET, PREFIX, PROTECT = 48, 3, 7


class Accumulated(LayerState):
    """Attention that each entry has received so far: needs the entries at each step, and to follow compaction."""

    def __init__(self, batch):
        self.sums = [torch.zeros(H_KV, 0) for _ in range(batch)]  # by slot
        self.by_position = [torch.zeros(H_KV, 512) for _ in range(batch)]  # the same, whatever the slots do

    def row_key(self, row):
        return row  # one row at a time: the simplest state there is

    def observe(self, queries, rope, until_full, rows, view):
        assert len(rows) == 1
        (row,) = rows.numbers
        n = queries.shape[2]
        at = view.now[:, None] - torch.arange(n - 1, -1, -1)
        received = ops.attention_weights(queries, view.keys, view.params, at, view.positions).sum((2, 3))[0]
        positions = view.positions[0].long()
        self.by_position[row].scatter_add_(1, positions, received)
        received[:, : self.sums[row].shape[1]] += self.sums[row]
        self.sums[row] = received
        torch.testing.assert_close(received, self.by_position[row].gather(1, positions))

    def evicted(self, source, rows):
        (row,) = rows.numbers
        self.sums[row] = ops.gather_entries(self.sums[row][None], source)[0]

    def select_rows(self, index, numbers):
        self.sums = [self.sums[row].clone() for row in numbers]
        self.by_position = [self.by_position[row].clone() for row in numbers]


@dataclass(frozen=True)
class MostAttended(EvictionPolicy):
    """Keep what has received the most attention. Lives in this test only: it uses all a state is told."""

    source = "this test"
    observes_entries = True

    def new_state(self, batch):
        return Accumulated(batch)

    def score(self, view, state):
        return torch.stack([state.sums[row] for row in view.rows.numbers])


CLASSES = {name: cls for name, cls in policies().items() if cls.evicts} | {"most attended": MostAttended}
EVICTING = list(CLASSES)


def rope_at(positions):
    angle = positions.unsqueeze(-1) / 50 ** (torch.arange(D // 2) / (D // 2))
    angle = torch.cat([angle, angle], -1)
    return Rope(angle.cos(), angle.sin(), ops.apply_half)


class Run:
    """A layer fed with a left-padded prompt and single tokens, drawn from streams of one seed per row."""

    def __init__(self, name, seeds, prompts, steps, poison=False, budget=BUDGET, dtype=torch.float32):
        self.events = []
        schedule = EvictionSchedule(budget, prefix=PREFIX, protect=PROTECT)
        self.layer = BoundedLayer(CLASSES[name](), schedule, on_evict=self.events.append)
        longest = max(prompts)
        total = longest + steps
        streams = []
        for seed, length in zip(seeds, prompts, strict=True):
            g = torch.Generator().manual_seed(seed)
            row = torch.randn(total, H + 2 * H_KV, D, generator=g).transpose(0, 1)
            streams.append(torch.cat([torch.zeros(H + 2 * H_KV, longest - length, D), row], 1)[:, :total])
        q, k, v = torch.stack(streams).to(dtype).split([H, H_KV, H_KV], 1)
        v = v[..., :VD]
        pad = torch.tensor([[longest - p] for p in prompts])
        real = torch.arange(longest) >= pad
        for start, stop in [(0, longest), *((t, t + 1) for t in range(longest, total))]:
            rope = rope_at((torch.arange(start, stop) - pad).clamp(min=0))
            mask = real if start == 0 and not real.all() else None
            self.layer.append(k[:, :, start:stop], v[:, :, start:stop], mask)
            if poison:
                for row, length in enumerate(self.layer.slab.lengths):
                    self.layer.slab.keys[row, :, length:] = torch.nan
                    self.layer.slab.values[row, :, length:] = torch.nan
                    self.layer.slab.positions[row, :, length:] = -(10**6)
            self.layer.observe(q[:, :, start:stop], rope, AttentionParams(D**-0.5))
            self.layer.check_integrity()

    def history(self, row):
        """(now, kept) of each eviction of one row."""
        return [(e.now[e.rows.index(row)], e.kept[e.rows.index(row)].tolist()) for e in self.events if row in e.rows]


@pytest.mark.parametrize("name", EVICTING)
class TestContract:
    def test_exact_budget_and_sorted_distinct_entries(self, name):
        run = Run(name, [1, 2], [130, 5], 90)
        assert len(run.history(0)) > 10
        assert run.layer.entries_dropped == sum(event.dropped.numel() for event in run.events)
        for event in run.events:
            assert event.kept.shape == (len(event.rows), H_KV, 7 * BUDGET // 8)
            assert (event.kept[..., 1:] > event.kept[..., :-1]).all()
            assert event.kept.shape[-1] + event.dropped.shape[-1] == event.positions.shape[-1] >= BUDGET
            both = torch.cat([event.kept, event.dropped], -1).sort(-1).values
            assert torch.equal(both, event.positions.sort(-1).values)

    def test_prefix_and_protected_entries_stay(self, name):
        for event in Run(name, [1, 2], [130, 5], 90).events:
            for i, now in enumerate(event.now):
                assert (event.kept[i, :, :PREFIX] == torch.arange(PREFIX)).all()
                assert (event.kept[i, :, -PROTECT:] == torch.arange(now - PROTECT + 1, now + 1)).all()

    def test_a_batch_equals_its_rows_alone(self, name):
        lengths = [61, 5, 130]
        together = Run(name, [1, 2, 3], lengths, 90)
        for row, length in enumerate(lengths):
            assert together.history(row) == Run(name, [1 + row], [length], 90).history(0)

    def test_order_of_rows_does_not_matter(self, name):
        a, b = Run(name, [1, 2, 3], [61, 5, 130], 60), Run(name, [3, 1, 2], [130, 61, 5], 60)
        assert [a.history(row) for row in (0, 1, 2)] == [b.history(row) for row in (1, 2, 0)]

    def test_nothing_is_read_beyond_the_stored_length(self, name):
        clean, poisoned = (Run(name, [1, 2], [60, 9], 90, poison=p) for p in (False, True))
        assert clean.history(0) == poisoned.history(0)
        assert clean.history(1) == poisoned.history(1)

    def test_state_is_fresh_for_each_cache(self, name):
        first = Run(name, [1], [60], 60).history(0)
        Run(name, [9], [200], 60)
        assert Run(name, [1], [60], 60).history(0) == first

    def test_reset_forgets_everything(self, name):
        run = Run(name, [1], [60], 60)
        run.layer.reset()
        assert not run.layer.is_allocated
        assert (run.layer.entries_dropped, run.layer.peak_entries) == (0, 0)

    def test_each_query_is_observed_once(self, name, monkeypatch):
        seen = {}
        state_class = type(CLASSES[name]().new_state(1))
        observe = state_class.observe

        def counting(self, queries, rope, until_full, rows, view):
            assert queries.shape[2] == rope.cos.shape[1]
            assert len(until_full) == len(rows) == queries.shape[0]
            for row in rows.numbers:
                seen[row] = seen.get(row, 0) + queries.shape[2]
            return observe(self, queries, rope, until_full, rows, view)

        monkeypatch.setattr(state_class, "observe", counting)
        Run(name, [1, 2], [130, 5], 90)
        assert seen == {0: 220, 1: 95}

    def test_scores_are_finite_and_change_nothing(self, name, monkeypatch):
        cls = CLASSES[name]
        score = cls.score

        def checked(self, view, state):
            before = view.keys.clone(), view.values.clone(), view.positions.clone()
            first, second = score(self, view, state), score(self, view, state)
            assert first.shape == view.positions.shape
            assert first.isfinite().all()
            assert torch.equal(first, second)
            for tensor, copy in zip((view.keys, view.values, view.positions), before, strict=True):
                assert torch.equal(tensor, copy)
            return first

        monkeypatch.setattr(cls, "score", checked)
        assert Run(name, [1, 2], [130, 5], 60).events

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_reduced_precision(self, name, dtype):
        run = Run(name, [1, 2], [130, 5], 60, dtype=dtype)
        assert run.layer.slab.keys.dtype == dtype
        assert len(run.history(0)) > 5

    def test_settings_are_frozen_and_described(self, name):
        policy = CLASSES[name]()
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            policy.anything = 1
        assert policy.source
        assert policy.__doc__.strip()
        assert hash(policy) == hash(CLASSES[name]())


def test_beam_reorder_moves_everything():
    """After a reorder, row i goes on as the row it was copied from."""
    for name in EVICTING:
        run = Run(name, [1, 2, 3], [61, 5, 130], 30)
        layer = run.layer
        layer.select_rows(torch.tensor([2, 2, 0, 1]))
        layer.check_integrity()
        run.events.clear()
        g = torch.Generator().manual_seed(7)
        for step in range(60):
            token = torch.randn(1, H + 2 * H_KV, 1, D, generator=g).expand(4, -1, -1, -1)
            q, k, v = token.split([H, H_KV, H_KV], 1)
            layer.append(k, v[..., :VD])
            layer.observe(q, rope_at(torch.tensor([[160.0 + step]])), AttentionParams(D**-0.5))
            layer.check_integrity()
        assert run.history(0) == run.history(1) != []
        assert run.history(0) != run.history(2)
