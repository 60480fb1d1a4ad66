"""Attention weights that a model gives out: which token each column is."""

import pytest
import torch
from transformers import DynamicCache

from beaconkv import BoundedCache
from tests.tiny import FAMILIES, prompt, tiny


def weights_by_position(weights, columns, length):
    """(B, H, m, length): the weights of the tokens themselves. weights (B, H, m, N), columns (B, H_kv, N)."""
    group = weights.shape[1] // columns.shape[1]
    at = columns.repeat_interleave(group, dim=1).unsqueeze(2).expand_as(weights).long()
    table = weights.new_zeros(*weights.shape[:3], length + 1)
    return table.scatter_add(-1, at.where(at >= 0, length), weights)[..., :length]


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_of_the_full_cache(family):
    """With a budget that is never reached, the weights of each token are those of the plain cache; padding has none."""
    model, inputs = tiny(family, "eager"), prompt(7, 30)
    cache, plain = BoundedCache(model, budget=400), DynamicCache(config=model.config)
    mask = inputs["attention_mask"]
    ids, length = inputs["input_ids"], 30
    for step in range(4):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        call = dict(attention_mask=mask, position_ids=positions, output_attentions=True)
        with torch.no_grad():
            ours, theirs = (model(ids, **call, past_key_values=c) for c in (cache, plain))
        for host in cache._bounded:
            index = host.layer.index
            columns = cache.column_positions(index)
            for row, own in enumerate((7, 30)):
                real = slice(None) if step else slice(30 - own, 30)
                got = ours.attentions[index][row : row + 1, :, real]
                got = weights_by_position(got, columns[row : row + 1], own + step)
                expected = theirs.attentions[index][row : row + 1, :, real, length - own - step :]
                torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
        ids = ours.logits[:, -1:].argmax(-1)
        mask, length = torch.cat([mask, torch.ones(2, 1).long()], dim=1), length + 1


@pytest.mark.parametrize("policy", ["beaconkv", "streaming_llm", "tova"])
@pytest.mark.parametrize("lengths", [(30,), (7, 30, 19)])
def test_columns_while_entries_are_evicted(policy, lengths):
    """Also of the steps that evict: the weights were computed before, and the newest token is the last of its row."""
    model = tiny("qwen3", "eager")
    events = []
    cache = BoundedCache(model, policy, budget=40, protect=8, on_evict=events.append)
    inputs = prompt(*lengths)
    seen, mask, ids = list(lengths), inputs["attention_mask"], inputs["input_ids"]
    evicting = 0
    for _ in range(60):
        before, held = len(events), {i: cache.positions(i) for i in range(3)}
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with torch.no_grad():
            out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, output_attentions=True)
        evicting += len(events) > before
        if ids.shape[1] == 1:
            seen = [n + 1 for n in seen]
            for index in range(3):
                columns = cache.column_positions(index)
                assert columns.shape[-1] == out.attentions[index].shape[-1]
                for row, length in enumerate(seen):
                    for head in range(2):
                        own = columns[row, head]
                        expected = [p for p in held[index][row, head].tolist() if p >= 0] + [length - 1]
                        assert sorted(own[own >= 0].tolist()) == expected
                        assert not out.attentions[index][row, 3 * head : 3 * head + 3, :, own < 0].any()
        ids = out.logits[:, -1:].argmax(-1)
        mask = torch.cat([mask, torch.ones(len(lengths), 1).long()], dim=1)
    assert evicting > 3


def test_where_there_are_no_weights():
    model, ids = tiny("qwen3"), prompt(20)["input_ids"]
    cache = BoundedCache(model, budget=400)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        with pytest.raises(ValueError, match='layer 1: the last forward pass gave no attention weights.*"eager"'):
            cache.column_positions(1)
        cache = BoundedCache(tiny("qwen3", "eager"), budget=400, prefill_chunk=8)
        tiny("qwen3", "eager")(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="without prefill_chunk"):
        cache.column_positions(0)
    with pytest.raises(ValueError, match="layer 9 is not bounded; bounded layers: 0, 1, 2"):
        cache.column_positions(9)
