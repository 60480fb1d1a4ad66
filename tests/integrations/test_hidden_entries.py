"""After any number of evictions, logits equal a full-cache run in which the evicted entries are hidden.

The strongest test of the library: positions, masks, compaction, GQA, padding and prompts longer than
the budget all have to be right for it to pass.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import BoundedCache
from tests.hidden import Recorder, full_logits
from tests.tiny import FAMILIES, kernels, prompt, tiny


@torch.no_grad()
def run_bounded(model, lengths, feeds, seed, **settings):
    """Feed a left-padded prompt, then chunks of the given sizes. Returns per row (tokens, logits), recorder, cache."""
    recorder = Recorder()
    cache = BoundedCache(model, on_evict=recorder, **settings)
    inputs = prompt(*lengths, seed=seed)
    mask = inputs["attention_mask"]
    rows = [([], []) for _ in lengths]
    ids = inputs["input_ids"]
    for step, size in enumerate([None, *feeds]):
        if size is not None:
            ids = prompt(*[size] * len(lengths), seed=seed + step)["input_ids"]
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache.check_integrity()
        for row in range(len(lengths)):
            real = mask[row, -ids.shape[1] :].bool()
            rows[row][0].extend(ids[row, real].tolist())
            rows[row][1].append(out.logits[row, real])
    return [(tokens, torch.cat(logits)) for tokens, logits in rows], recorder, cache


def assert_equal_to_hidden(model, rows, recorder, cache):
    layers = [host.layer.index for host in cache._bounded]
    for row, (tokens, logits) in enumerate(rows):
        expected = full_logits(model, tokens, recorder, row, layers)
        scale = expected.abs().max().clamp(min=1.0)
        torch.testing.assert_close(logits / scale, expected / scale, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family):
    for kernel in kernels(family):
        model = tiny(family, kernel)
        rows, recorder, cache = run_bounded(model, [3, 20, 41], [1] * 60, seed=1, budget=40, protect=8)
        assert cache.stats.evictions >= 10
        assert_equal_to_hidden(model, rows, recorder, cache)


settings_of = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["beaconkv", "streaming_llm", "recent"]),
        "budget": st.integers(24, 70),
        "scope": st.sampled_from(["total", "output"]),
        "prefix": st.integers(0, 6),
        "protect": st.integers(0, 12),
        "prefill_chunk": st.sampled_from([None, 1, 7, 16]),
    }
)


@settings(max_examples=40)
@given(
    family=st.sampled_from(["llama", "qwen3-yarn", "smollm3", "gpt-oss"]),
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    feeds=st.lists(st.sampled_from([1, 1, 1, 1, 1, 1, 1, 1, 2, 9, 50]), min_size=0, max_size=60),
    settings=settings_of,
    seed=st.integers(0, 2**16),
)
def test_any_budget_prompt_and_batch(family, lengths, feeds, settings, seed):
    model = tiny(family)
    rows, recorder, cache = run_bounded(model, lengths, feeds, seed, **settings)
    assert_equal_to_hidden(model, rows, recorder, cache)


def test_the_test_can_fail():
    """Hiding one entry more than was evicted must show."""
    model = tiny("llama")
    rows, recorder, cache = run_bounded(model, [30], [1] * 40, seed=1, budget=40, protect=8)
    layer, row, now, dropped = recorder.gone[0]
    kept = sorted(set(range(now)) - set(dropped[0].tolist()))
    dropped[0, 0] = kept[len(kept) // 2]
    with pytest.raises(AssertionError):
        assert_equal_to_hidden(model, rows, recorder, cache)
