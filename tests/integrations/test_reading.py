"""A prompt that is read in chunks: a row of a padded batch keeps what it keeps alone, whoever cuts."""

import copy

import pytest
import torch
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beaconkv import BoundedCache
from beaconkv.integrations.transformers.reading import chunks_of, order_of
from tests.tiny import IS_NEW, greedy, prompt, tiny


def read(model, inputs, host_chunk, new_tokens, **arguments):
    cache = BoundedCache(model, **arguments)
    extra = {} if host_chunk is None else {"prefill_chunk_size": host_chunk}
    tokens = greedy(model, inputs, cache, new_tokens=new_tokens, **extra)
    cache.check_integrity()
    return tokens, cache


def assert_rows_as_alone(model, lengths, host_chunk, new_tokens=12, **arguments):
    inputs = prompt(*lengths, seed=sum(lengths))
    tokens, cache = read(model, inputs, host_chunk, new_tokens, **arguments)
    for row, length in enumerate(lengths):
        own = {"input_ids": inputs["input_ids"][row : row + 1, -length:]}
        own["attention_mask"] = torch.ones_like(own["input_ids"])
        alone, single = read(model, own, host_chunk, new_tokens, **arguments)
        assert torch.equal(tokens[row : row + 1], alone), (row, length)
        for host in cache._bounded:
            held = cache.positions(host.layer.index)[row : row + 1]
            expected = single.positions(host.layer.index)
            assert torch.equal(held[..., : expected.shape[-1]], expected)
            assert (held[..., expected.shape[-1] :] == -1).all()
            assert host.layer.prompts[row] == single._bounded[0].layer.prompts[0] == length


@settings(max_examples=40)
@given(
    family=st.sampled_from(["qwen3", "smollm3", "gemma3"]),
    lengths=st.lists(st.integers(2, 90), min_size=1, max_size=3),
    policy=st.sampled_from(["beaconkv", "snapkv", "streaming_llm", "h2o", "random_history"]),
    scope=st.sampled_from(["total", "output"]),
    own=st.sampled_from([None, 1, 7, 16, 32]),
    host=st.sampled_from([None, 5, 16, 31] if IS_NEW else [None]),
    stagger=st.sampled_from([1, 1, 2]),
)
@example("qwen3", [75, 90], "beaconkv", "total", 7, 31 if IS_NEW else None, 1)
@example("qwen3", [25, 66], "streaming_llm", "total", 8, None, 2)
@example("smollm3", [33, 66], "beaconkv", "total", 16, None, 2)
def test_rows_as_alone(family, lengths, policy, scope, own, host, stagger):
    model = tiny(family)
    protect = "half" if policy == "h2o" else 8
    arguments = dict(policy=policy, budget=40, scope=scope, protect=protect, prefill_chunk=own, stagger=stagger)
    assert_rows_as_alone(model, lengths, host, **arguments)


@pytest.mark.skipif(IS_NEW, reason="newer releases give each row its own positions")
def test_a_release_that_gives_padded_rows_the_positions_of_columns():
    model = tiny("qwen3")
    with pytest.raises(ValueError, match=r"row 0: .* use BoundedCache\(..., prefill_chunk=...\) instead"):
        greedy(model, prompt(20, 70), BoundedCache(model, budget=400), prefill_chunk_size=24)
    greedy(model, prompt(70, 70), BoundedCache(model, budget=400), prefill_chunk_size=24)


@pytest.mark.skipif(not IS_NEW, reason="older releases give padded rows other positions")
@pytest.mark.parametrize("length", [33, 65])
def test_a_last_chunk_of_one_token(length):
    """Known to be of the prompt, since generate says how it cuts: alone and in a batch."""
    model = tiny("qwen3")
    assert_rows_as_alone(model, [length, 70, 3], 32, budget=40, protect=8, scope="output")
    _, cache = read(model, prompt(length), 32, 2, budget=40, protect=8, scope="output")
    assert cache._bounded[0].layer.prompts == [length]


@pytest.mark.skipif(not IS_NEW, reason="older releases feed the whole text again: refused")
def test_a_second_turn_cut_by_the_host():
    model = tiny("qwen3")
    for policy in ("beaconkv", "streaming_llm"):
        texts = []
        for _ in range(2):
            cache = BoundedCache(model, policy, budget=44, protect=8)
            inputs = prompt(20)
            for turn in range(3):
                ids = model.generate(
                    **inputs, past_key_values=cache, max_new_tokens=5, do_sample=False, prefill_chunk_size=8
                )
                ids = torch.cat([ids, prompt(21, seed=turn)["input_ids"]], dim=1)
                inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            texts.append(ids)
            cache.check_integrity()
        assert torch.equal(*texts)
        assert cache.stats.evictions > 2
        assert cache._bounded[0].layer.prompts == [20]


@pytest.mark.skipif(not IS_NEW, reason="older releases give padded rows other positions")
def test_a_prompt_that_broke_off_between_two_chunks_is_noticed():
    model, inputs = tiny("qwen3"), prompt(50, 70)
    cache = BoundedCache(model, budget=400)
    calls = []

    def fail_later(module, args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(fail_later)
    try:
        with pytest.raises(KeyboardInterrupt):
            greedy(model, inputs, cache, prefill_chunk_size=24)
    finally:
        handle.remove()
    with pytest.raises(RuntimeError, match="broke off"):
        model(inputs["input_ids"][:, :1], past_key_values=cache)
    cache.reset()
    greedy(model, inputs, cache, prefill_chunk_size=24)


@pytest.mark.skipif(not IS_NEW, reason="older releases give padded rows other positions")
def test_chunks_of_the_host_however_they_are_asked_for():
    """In a call that makes its cache, in a config by position, by default of the model, and not at all."""
    model = copy.deepcopy(tiny("qwen3"))
    settings = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    inputs = prompt(75, 90)

    def kept(where, **more):
        cache = BoundedCache(model, budget=40, protect=8)
        mask = {"attention_mask": inputs["attention_mask"]}
        if where == "config":
            config = transformers.GenerationConfig(**settings, **more)
            model.generate(inputs["input_ids"], config, **mask, past_key_values=cache)
        else:
            model.generate(inputs["input_ids"], **mask, past_key_values=cache, **settings, **more)
        return cache.positions(0)

    cut, whole = kept("keyword", prefill_chunk_size=31), kept("keyword")
    assert not torch.equal(cut, whole)
    assert torch.equal(kept("config", prefill_chunk_size=31), cut)
    model.generation_config.prefill_chunk_size = 31
    assert torch.equal(kept("keyword"), cut)
    assert torch.equal(kept("keyword", prefill_chunk_size=None), whole)
    both = model.generate(**inputs, past_key_values=BoundedCache(model, budget=40, protect=8), **settings)
    alone = inputs["input_ids"][:1, -75:]
    cache = BoundedCache(model, budget=40, protect=8)
    assert torch.equal(model.generate(alone, past_key_values=cache, **settings)[:, 75:], both[:1, 90:])


@pytest.mark.skipif(not IS_NEW, reason="older releases give padded rows other positions")
def test_a_copy_made_while_text_is_written_reads_prompts_of_its_own():
    model, copies = tiny("qwen3"), []
    cache = BoundedCache(model, budget=40, protect=8)

    def snap(ids, scores, **kwargs):
        copies.append(copy.deepcopy(cache))
        return torch.zeros(1, dtype=torch.bool)

    greedy(model, prompt(50), cache, new_tokens=3, prefill_chunk_size=24, stopping_criteria=[snap])
    copies[0].reset()
    with torch.no_grad():
        model(prompt(30)["input_ids"], past_key_values=copies[0])
    assert copies[0].cut is None
    assert copies[0]._bounded[0].waiting is None


@pytest.mark.skipif(not IS_NEW, reason="older releases give padded rows other positions")
def test_what_waits_is_counted():
    """Keys and values that wait for the rest of their chunk are part of the peak."""
    model = tiny("qwen3")
    peaks = [
        read(model, prompt(*lengths), 24, 2, budget=40, protect=8)[1].stats.peak_kv_bytes
        for lengths in ((70,), (20, 70))
    ]
    assert peaks[1] > peaks[0]


@given(
    rows=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=4),
    host=st.none() | st.integers(1, 20),
    own=st.none() | st.integers(1, 20),
    is_last=st.booleans(),
)
def test_chunks_of_any_rows_are_those_of_each_alone(rows, host, own, is_last):
    """Every token is in one chunk, in order; a chunk ends where it would end had all tokens come at once."""
    counts, taken = [count for count, _ in rows], [before for _, before in rows]
    chunks, ends = chunks_of(counts, taken, host, own, is_last)
    for row, (count, before) in enumerate(rows):
        expected, start = [], before
        for token in range(before, before + count):
            block = token // host * host if host else 0
            is_end = (host and (token + 1) % host == 0) or (own and (token + 1 - block) % own == 0)
            if is_end or (token == before + count - 1 and (is_last or host is own is None)):
                expected.append((start - before, token + 1 - before))
                start = token + 1
        spans = [spans[row] for spans in chunks if spans[row][0] < spans[row][1]]
        assert spans == expected
        assert ends[row] == start - before
    for spans in chunks:
        columns = [range(100 * row, 100 * row + count) for row, count in enumerate(counts)]
        order, real = order_of(spans, columns)
        assert len({len(own_order) for own_order in order}) == 1
        for row, (start, stop) in enumerate(spans):
            kept = [column for column, there in zip(order[row], real[row], strict=True) if there]
            assert kept == list(range(100 * row + start, 100 * row + stop))
