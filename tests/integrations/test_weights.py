"""What a policy is shown gives the model's own attention weights, head by head and entry by entry, in every family.

That logits are right with the evicted entries gone says nothing about it: they are, whatever is evicted.
"""

import sys
from dataclasses import dataclass, replace

import pytest
import torch

from beaconkv import BoundedCache, EvictionPolicy, ops
from beaconkv.policies import LayerState
from tests.tiny import FAMILIES, prompt, tiny


@dataclass
class Shown:
    """What a policy was shown of one row in one pass, and what it computes from it.

    Attributes:
        queries: (H, m, D) after RoPE.
        before: (H, m, D) before RoPE.
        weights: (H, m, N) over the entries at these positions (H, N).
    """

    queries: torch.Tensor
    before: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor


class Seen(LayerState):
    """What one layer was shown last, by row."""

    def __init__(self):
        self.shown = {}

    def observe(self, queries, rope, until_full, rows, view):
        steps = torch.arange(queries.shape[2])
        weights = weights_of(queries, view, view.now[:, None] - steps.flip(0))
        before, group = ops.unrotate(queries, rope), queries.shape[1] // view.keys.shape[1]
        for i, row in enumerate(rows.numbers):
            positions = view.positions[i].long().repeat_interleave(group, 0)
            self.shown[row] = Shown(queries[i], before[i], weights[i], positions)


def weights_of(queries, view, at):
    return ops.attention_weights(queries, view.keys, view.params, at, view.positions).flatten(1, 2)


@dataclass(frozen=True)
class Spy(EvictionPolicy):
    """Not registered: keeps entries without any order, and remembers what it is shown."""

    observes_entries = True

    def new_state(self, batch):
        return Seen()

    def score(self, view, state):
        """Beacons are turned to now: so turned, the newest query must be what it was, and see the same."""
        shown = [state.shown[row] for row in view.rows.numbers]
        newest = torch.stack([row.queries[:, -1:] for row in shown])
        turned = ops.rotate(torch.stack([row.before[:, -1:] for row in shown]), view.rope)
        torch.testing.assert_close(turned, newest, atol=1e-4, rtol=1e-4)
        weights = weights_of(newest, view, view.now[:, None])
        torch.testing.assert_close(weights, torch.stack([row.weights[:, -1:] for row in shown]))
        return (view.positions * 7919 % 101).float()


class AttentionRecorder:
    """Attention modules by layer; and of the last pass, cos and sin that each was given, and its weights."""

    def __init__(self, model, layers):
        self.modules, self.given, self.weights, self.handles = {}, {}, {}, []
        for module in model.modules():
            if getattr(module, "layer_idx", None) in layers and hasattr(module, "scaling"):
                self.modules[module.layer_idx] = module
                self.handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                self.handles.append(module.register_forward_hook(self._after))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def _before(self, module, args, kwargs):
        self.given[module.layer_idx] = kwargs["position_embeddings"]

    def _after(self, module, args, output):
        self.weights[module.layer_idx] = output[1]

    def turned(self, index, before, row, real):
        """Queries (H, m, D) before RoPE of a row, turned by the model's own function at its own positions."""
        module = self.modules[index]
        if not getattr(module, "use_rope", True):
            return before
        cos, sin = (table[row, real][None] for table in self.given[index])
        own = sys.modules[type(module).__module__].apply_rotary_pos_emb
        return own(before[None], before[None], cos, sin)[0][0]


class Run:
    """A bounded cache that is fed a ragged prompt and more."""

    def __init__(self, model, lengths, budget):
        self.model, self.cache = model, BoundedCache(model, Spy(), budget, protect=4)
        self.layers = {host.layer.index: host.layer for host in self.cache._bounded}
        self.mask = torch.zeros(len(lengths), 0, dtype=torch.int64)

    def feed(self, ids, real):
        """Per layer, the positions of the stored entries by slot before they come: of each row, (H_kv, length)."""
        held = {
            index: [layer.slab.positions[row, :, :n].long().clone() for row, n in enumerate(layer.slab.lengths)]
            for index, layer in self.layers.items()
            if layer.is_allocated
        }
        self.mask = torch.cat([self.mask, real], 1)
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        self.model(ids, attention_mask=self.mask, position_ids=positions, past_key_values=self.cache, use_cache=True)
        return held


def by_position(weights, positions, size):
    """weights (H, m, N), positions (H, N) -> (H, m, size), 0 where nothing is held."""
    table = torch.zeros(*weights.shape[:2], size)
    return table.scatter_add_(2, positions.unsqueeze(1).expand_as(weights), weights)


def of_row(weights, held, row, real, seen):
    """The model's weights (H, m, N) of a row's real queries, and the positions (H, N) of the entries.

    Args:
        weights: (B, H, m, columns): what is stored in slots, up to the longest row; then the new tokens. A single new
            token's entry is stored first.
        held: per row, positions (H_kv, length) by slot.
        real: (B, m) bool.
        seen: tokens of the row, the new ones included.
    """
    own, longest, count = held[row], max(h.shape[1] for h in held), real.shape[1]
    new = longest + real[row].nonzero().flatten() if count > 1 else torch.tensor([own.shape[1]])
    columns = torch.cat([torch.arange(own.shape[1]), new])
    positions = torch.cat([own, torch.arange(seen - len(new), seen).expand(own.shape[0], -1)], 1)
    group = weights.shape[1] // own.shape[0]
    return weights[row][:, real[row]][..., columns], positions.repeat_interleave(group, 0)


@torch.no_grad()
def compare(model, lengths, feeds, budget=28):
    """Of each pass, layer and row compares all weights, and the queries turned back and turned again."""
    run, inputs = Run(model, lengths, budget), prompt(*lengths)
    error, nothing = 0.0, [torch.zeros(model.config.num_key_value_heads, 0, dtype=torch.int64) for _ in lengths]
    with AttentionRecorder(model, run.layers) as recorder:
        for number, size in enumerate([None, *feeds]):
            if size is not None:
                inputs = prompt(*[size] * len(lengths), seed=number)
            held, real = run.feed(inputs["input_ids"], inputs["attention_mask"]), inputs["attention_mask"].bool()
            for index, layer in run.layers.items():
                for row, shown in layer.state.shown.items():
                    seen = int(run.mask[row].sum())
                    expected = by_position(
                        *of_row(recorder.weights[index], held.get(index, nothing), row, real, seen), seen
                    )
                    got = by_position(shown.weights, shown.positions, seen)
                    assert got.shape == expected.shape
                    error = max(error, (got - expected).abs().max().item())
                    again = recorder.turned(index, shown.before, row, real[row])
                    torch.testing.assert_close(again, shown.queries, atol=1e-4, rtol=1e-4)
                assert len(layer.state.shown) == len(lengths)
                layer.state.shown.clear()
    assert run.cache.stats.evictions > 5
    return error


TURNS = [1] * 25 + [6] + [1] * 25


@pytest.mark.parametrize("family", [*FAMILIES, "gemma2"])  # the only one with a softcap
def test_weights_are_the_models_own(family):
    assert compare(tiny(family, "eager"), (3, 17, 45), TURNS) < 5e-6


def test_a_softcap_that_the_kernel_ignores_is_not_the_policys():
    """SDPA knows none: transformers 4 leaves it out without a word, newer releases refuse."""
    try:
        model = tiny("gemma2", "sdpa")
    except ValueError as error:
        pytest.skip(str(error))
    without, inputs = tiny("gemma2", "eager", attn_logit_softcapping=None), prompt(20)
    cache = BoundedCache(model, Spy(), 28, protect=4)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, without(**inputs).logits, atol=1e-4, rtol=1e-4)
        model(**inputs, past_key_values=cache, use_cache=True)
        model(torch.tensor([[5]]), past_key_values=cache, use_cache=True)
    assert [host.layer.params.softcap for host in cache._bounded] == [None, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_queries_of_one_repeated_token_are_alike_before_rope(family):
    """In the first layer at least, all positions hold the same hidden state: only the rotation tells them apart."""
    first = {"layer_types": ("full_attention", "sliding_attention") * 2} if family == "gpt-oss" else {}
    model = tiny(family, "eager", **first)
    cache = BoundedCache(model, Spy(), 28, protect=4)
    layer = next(host.layer for host in cache._bounded)
    assert layer.index == 0 or family == "gemma3"  # whose first layer of full attention is the sixth
    before, after = [], []
    with torch.no_grad():
        for size in (20, *[1] * 30):
            model(torch.full((1, size), 7), past_key_values=cache, use_cache=True)
            before.append(layer.state.shown[0].before)
            after.append(layer.state.shown[0].queries)
    before, after = torch.cat(before, 1), torch.cat(after, 1)
    scale = before.abs().max()
    assert (before - before[:, :1]).abs().max() < 1e-4 * scale
    assert (after - after[:, :1]).abs().max() > 0.5 * scale


@pytest.mark.parametrize("wrong", ["scaling", "rotation", "positions"])
def test_the_test_can_fail(wrong, monkeypatch):
    spoiled = {
        "scaling": lambda view: {"params": type(view.params)(2 * view.params.scaling)},
        "rotation": lambda view: {"keys": view.keys.flip(-1)},
        "positions": lambda view: {"positions": view.positions.flip(-1)},
    }[wrong]
    observe = Seen.observe
    monkeypatch.setattr(Seen, "observe", lambda *args: observe(*args[:-1], replace(args[-1], **spoiled(args[-1]))))
    monkeypatch.setattr(Spy, "score", lambda self, view, state: (view.positions * 7919 % 101).float())
    assert compare(tiny("llama", "eager"), (3, 17, 45), TURNS) > 1e-3
