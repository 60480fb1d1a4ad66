"""A prompt that is read in pieces: a row of a padded batch keeps what it keeps alone, whoever cuts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import BoundedCache
from beaconkv.integrations.transformers.reading import HostCut, blocks_of, order_of, pieces_of
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


@settings(max_examples=25)
@given(
    family=st.sampled_from(["qwen3", "smollm3", "gemma3"]),
    lengths=st.lists(st.integers(2, 90), min_size=1, max_size=3),
    policy=st.sampled_from(["beaconkv", "snapkv", "streaming_llm", "h2o", "random_history"]),
    scope=st.sampled_from(["total", "output"]),
    own=st.sampled_from([None, 1, 7, 16, 32]),
    host=st.sampled_from([None, 5, 16, 31] if IS_NEW else [None]),
)
def test_rows_as_alone(family, lengths, policy, scope, own, host):
    model = tiny(family)
    protect = "half" if policy == "h2o" else 8
    arguments = dict(policy=policy, budget=40, scope=scope, protect=protect, prefill_chunk=own)
    assert_rows_as_alone(model, lengths, host, **arguments)


@pytest.mark.skipif(IS_NEW, reason="newer releases give each row its own positions")
def test_a_release_that_gives_padded_rows_the_positions_of_columns():
    model = tiny("qwen3")
    with pytest.raises(ValueError, match=r"row 0: .* use BoundedCache\(..., prefill_chunk=...\) instead"):
        greedy(model, prompt(20, 70), BoundedCache(model, budget=400), prefill_chunk_size=24)
    greedy(model, prompt(70, 70), BoundedCache(model, budget=400), prefill_chunk_size=24)


@pytest.mark.skipif(not IS_NEW, reason="older releases give padded rows other positions")
@pytest.mark.parametrize("length", [33, 65])
def test_a_last_piece_of_one_token(length):
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
def test_a_prompt_that_broke_off_between_two_pieces_is_noticed():
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
def test_what_waits_is_counted():
    """Keys and values that wait for the rest of their piece are part of the peak."""
    model = tiny("qwen3")
    peaks = [
        read(model, prompt(*lengths), 24, 2, budget=40, protect=8)[1].stats.peak_kv_bytes
        for lengths in ((70,), (20, 70))
    ]
    assert peaks[1] > peaks[0]


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=4).filter(any),
    size=st.integers(1, 20),
    piece=st.none() | st.integers(1, 20),
    is_last=st.booleans(),
)
def test_every_token_is_in_one_piece_and_pieces_end_at_multiples(counts, size, piece, is_last):
    blocks, ends = blocks_of(counts, HostCut(size, 100), is_last)
    read = [[] for _ in counts]
    for block in blocks:
        for spans in pieces_of(block, piece):
            assert any(start < stop for start, stop in spans)
            order, real = order_of(spans, [range(100 * row, 100 * row + n) for row, n in enumerate(counts)])
            for row, (own, there) in enumerate(zip(order, real, strict=True)):
                read[row] += [column - 100 * row for column, is_real in zip(own, there, strict=True) if is_real]
                start, stop = spans[row]
                assert stop - start <= min(size, piece or size)
                assert start == stop or stop % size == 0 or (stop % size) % (piece or size) == 0 or stop == ends[row]
    assert read == [list(range(end)) for end in ends]
    assert all(end == n if is_last else end == n // size * size for end, n in zip(ends, counts, strict=True))
