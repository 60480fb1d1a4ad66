"""A cache goes on with the text it was shown, and with no other: everything else is refused before it is computed."""

import copy
from collections import Counter

import pytest
import torch
import transformers
from transformers import DynamicCache

from beaconkv import BoundedCache, CompiledDecoder
from beaconkv.integrations.transformers import model_checks
from beaconkv.integrations.transformers.continuation import BLOCK, SeenColumns
from tests.cache.test_decode_step import WAITS, Watch
from tests.tiny import IS_NEW, greedy, kernels, prompt, tiny

LARGE = dict(budget=400)


def ids_of(length, seed):
    return prompt(length, seed=seed)["input_ids"]


def write(model, ids, cache=None, new_tokens=10, **kwargs):
    """The whole text."""
    kwargs.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(
        ids, past_key_values=cache, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0, **kwargs
    )


@pytest.mark.parametrize("length", [5, 29, 30, 31, 60])
def test_another_text(length):
    model, cache = tiny("qwen3"), BoundedCache(tiny("qwen3"), **LARGE)
    write(model, ids_of(20, 1), cache)
    with pytest.raises(ValueError, match=r"does not continue what the cache holds.*make a new cache or reset\(\)"):
        write(model, ids_of(length, 2), cache)
    cache.reset()
    assert torch.equal(write(model, ids_of(length, 2), cache), write(model, ids_of(length, 2)))


def test_the_text_itself_without_a_new_token():
    model, cache = tiny("qwen3"), BoundedCache(tiny("qwen3"), **LARGE)
    text = write(model, ids_of(20, 1), cache)
    assert cache.get_seq_length() == 29
    for length in (12, 29):
        with pytest.raises(ValueError, match=f"already seen 29 tokens, and this text has {length}"):
            write(model, text[:, :length], cache)
    assert torch.equal(write(model, text, cache), write(model, text))


def test_what_stands_in_padding_is_no_text():
    model, inputs = tiny("qwen3"), prompt(9, 20)
    cache = BoundedCache(model, **LARGE)
    texts = model.generate(**inputs, past_key_values=cache, max_new_tokens=5, do_sample=False)
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 5).long()], dim=1)
    texts[0, :11] = 7  # in place of padding tokens
    again = write(model, texts, copy.deepcopy(cache), attention_mask=mask)
    assert torch.equal(again, write(model, texts, attention_mask=mask))
    texts[0, 11] += 1
    with pytest.raises(ValueError, match="token 11 of row 0"):
        write(model, texts, cache, attention_mask=mask)


@pytest.mark.parametrize("changed", [0, 7, 25])
def test_one_token_of_an_earlier_turn_is_another(changed):
    """A chat template that rewrites earlier turns, or a text that was cut into other tokens at a seam."""
    model, cache = tiny("qwen3"), BoundedCache(tiny("qwen3"), **LARGE)
    turn = torch.cat([write(model, ids_of(20, 1), cache), ids_of(15, 3)], dim=1)
    other = turn.clone()
    other[0, changed] = other[0, changed] % 60 + 1
    with pytest.raises(ValueError, match=f"token {changed} of row 0 is {other[0, changed]}, and the cache has seen"):
        write(model, other, cache)
    dropped = torch.cat([turn[:, :20], turn[:, 28:]], dim=1)  # the thinking of the first turn is gone
    with pytest.raises(ValueError, match="does not continue"):
        write(model, torch.cat([dropped, dropped], dim=1), cache)
    assert torch.equal(write(model, turn, cache), write(model, turn))  # a refusal leaves the cache as it was


def test_turns_that_do_continue():
    """Whole texts or new tokens with the mask of all; rows of a batch; texts written in a loop, in compiled steps."""
    model = tiny("qwen3")
    inputs = prompt(9, 20)
    cache, full = BoundedCache(model, **LARGE), DynamicCache(config=model.config)
    for turn in range(3):
        texts = [model.generate(**inputs, past_key_values=c, max_new_tokens=7, do_sample=False) for c in (cache, full)]
        assert torch.equal(*texts)
        more = prompt(5, 5, seed=turn)["input_ids"]
        ids = torch.cat([texts[0], more], dim=1)
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, ids.shape[1] - inputs["input_ids"].shape[1])], dim=1)
        inputs = {"input_ids": ids, "attention_mask": mask.long()}
    if model_checks.cache_argument() == "cache":  # older releases take whole texts only
        only_new = {"input_ids": more[:, -3:], "attention_mask": torch.cat([mask, torch.ones(2, 3)], dim=1).long()}
        seen = [c.get_seq_length() for c in (cache, full)]
        only_new["attention_mask"] = only_new["attention_mask"][:, : seen[0] + 3]
        texts = [
            model.generate(**only_new, past_key_values=c, max_new_tokens=7, do_sample=False) for c in (cache, full)
        ]
        assert torch.equal(*texts)


def test_texts_written_step_by_step_are_known_too():
    model, ids = tiny("qwen3"), ids_of(BLOCK + 40, 1)
    cache = BoundedCache(model, budget=60, protect=8)
    decoder = None
    with torch.no_grad():
        model(ids[:, :20], past_key_values=cache)
        for i in range(20, ids.shape[1] - 10):
            model(ids[:, i : i + 1], past_key_values=cache)
        decoder = CompiledDecoder(model, cache, backend="eager")
        for i in range(ids.shape[1] - 10, ids.shape[1]):
            decoder(ids[:, i : i + 1])
    for at in (3, 19, 20, 700, 20 + BLOCK, ids.shape[1] - 1):
        other = torch.cat([ids, ids_of(3, 9)], dim=1)
        other[0, at] = other[0, at] % 60 + 1
        with pytest.raises(ValueError, match=f"token {at} of row 0"):
            write(model, other, cache)
    copied = copy.deepcopy(cache)
    write(model, torch.cat([ids, ids_of(3, 9)], dim=1), cache)
    write(model, torch.cat([ids, ids_of(5, 8)], dim=1), copied)
    with pytest.raises(ValueError, match=f"token {ids.shape[1]} of row 0"):
        write(model, torch.cat([ids, ids_of(50, 8)], dim=1), cache)


def test_rows_that_were_moved_keep_their_texts():
    model, inputs = tiny("qwen3"), prompt(20, 20)
    cache = BoundedCache(model, **LARGE)
    texts = model.generate(**inputs, past_key_values=cache, max_new_tokens=5, do_sample=False)
    order = torch.tensor([1, 0, 1])
    cache.batch_select_indices(order)
    turn = torch.cat([texts, ids_of(4, 3).expand(2, -1)], dim=1)[order]
    assert torch.equal(write(model, turn, copy.deepcopy(cache)), write(model, turn))
    with pytest.raises(ValueError, match="does not continue"):
        write(model, turn[[0, 0, 2]], cache)


def test_beams_then_a_second_turn():
    model, cache = tiny("qwen3"), BoundedCache(tiny("qwen3"), **LARGE)
    cache_rows = 3
    ids = ids_of(20, 1)
    write(model, ids.expand(cache_rows, -1), cache, new_tokens=1)
    with pytest.raises(ValueError, match="does not continue"):
        write(model, ids, cache, num_beams=cache_rows)


def test_the_same_prompt_after_an_interruption():
    model, cache = tiny("qwen3"), BoundedCache(tiny("qwen3"), **LARGE)
    calls = []

    def interrupt(ids, scores, **kwargs):
        calls.append(ids)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return torch.zeros(1, dtype=torch.bool)

    with pytest.raises(KeyboardInterrupt):
        write(model, ids_of(20, 1), cache, stopping_criteria=[interrupt])
    with pytest.raises(ValueError, match="the cache has already seen 24 tokens, and this text has 20"):
        write(model, ids_of(20, 1), cache)


@pytest.mark.parametrize("where", ["argument", "generation_config", "model"])
def test_use_cache_false(where):
    model, cache = copy.deepcopy(tiny("qwen3")), BoundedCache(tiny("qwen3"), **LARGE)
    cache = BoundedCache(model, **LARGE)
    kwargs = {}
    if where == "argument":
        kwargs["use_cache"] = False
    elif where == "model":
        model.generation_config.use_cache = False
    else:
        kwargs["generation_config"] = copy.deepcopy(model.generation_config)
        kwargs["generation_config"].use_cache = False
    with pytest.raises(ValueError, match="use_cache=False together with a BoundedCache"):
        write(model, ids_of(20, 1), cache, **kwargs)
    assert write(model, ids_of(20, 1)).shape == (1, 30)


def test_positions_before_those_seen():
    """A loop that feeds the whole text at each step, or another text with positions from 0 on."""
    model, ids = tiny("qwen3"), ids_of(20, 1)
    cache = BoundedCache(model, **LARGE)
    with torch.no_grad():
        model(ids, position_ids=torch.arange(20)[None], past_key_values=cache)
        for start in (0, 5, 19):
            with pytest.raises(
                ValueError, match=f"begins at position {start}, but the cache has already seen position 19"
            ):
                model(ids[:, :4], position_ids=torch.arange(start, start + 4)[None], past_key_values=cache)
        model(
            ids[:, :4], position_ids=torch.arange(23, 27)[None], past_key_values=cache
        )  # made by hand: not ours to judge


def test_padding_is_no_position():
    model, inputs = tiny("qwen3"), prompt(3, 20)
    cache = BoundedCache(model, **LARGE)
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        model(**inputs, position_ids=positions, past_key_values=cache)
        more, longer = prompt(4, 4, seed=2)["input_ids"], torch.cat([mask, torch.ones(2, 4).long()], dim=1)
        model(more, attention_mask=longer, position_ids=positions[:, -1:] + torch.arange(1, 5), past_key_values=cache)
        longer = torch.cat([longer, torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])], dim=1)
        positions = (longer.cumsum(-1) - 1)[:, -4:]
        model(more, attention_mask=longer, position_ids=positions, past_key_values=cache)
        longer = torch.cat([longer, torch.ones(2, 4).long()], dim=1)
        positions[0] -= 1
        with pytest.raises(ValueError, match="row 0: this input begins at position 7"):
            model(more, attention_mask=longer, position_ids=positions + 2, past_key_values=cache)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt-oss"])
def test_a_mask_over_tokens_that_are_cached(family):
    """In several tokens and in single steps, hidden and shown, under every attention implementation."""
    inputs = prompt(9, 30)
    for kernel in kernels(family):
        model = tiny(family, kernel)
        for new in (1, 6):
            cache = BoundedCache(model, **LARGE)
            more = prompt(new, new, seed=2)["input_ids"]
            mask = torch.cat([inputs["attention_mask"], torch.ones(2, new).long()], dim=1)
            positions = (mask.cumsum(-1) - 1)[:, -new:]
            call = dict(position_ids=positions, past_key_values=cache)
            with torch.no_grad():
                model(**inputs, past_key_values=cache)
                for row, column, value in ((0, 25, 0), (1, 3, 0), (0, 2, 1)):
                    wrong = mask.clone()
                    wrong[row, column] = value
                    with pytest.raises(ValueError, match="attention mask differs from that of earlier passes"):
                        model(more, attention_mask=wrong, **call)
                model(more, attention_mask=mask, **call)


def test_a_mask_changed_in_place():
    model, inputs = tiny("qwen3"), prompt(20)
    cache, mask = BoundedCache(model, **LARGE), torch.ones(1, 40, dtype=torch.int64)
    with torch.no_grad():
        model(inputs["input_ids"], attention_mask=mask[:, :20], past_key_values=cache)
        mask[0, 4] = 0
        for new in (1, 3):
            with pytest.raises(ValueError, match="attention mask differs"):
                model(inputs["input_ids"][:, :new], attention_mask=mask[:, : 20 + new], past_key_values=cache)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("tokens", [1, 30])
def test_a_cache_of_another_model(kernel, tokens):
    """In the first pass, whether the other model has bounded caches of its own or not; nothing is stored."""
    one, other = tiny("qwen3", kernel), tiny("llama", kernel)
    cache = BoundedCache(one, **LARGE)
    for own in (False, True):
        keep = BoundedCache(other, **LARGE) if own else None
        with pytest.raises(ValueError, match="was not made for|made for another model"), torch.no_grad():
            other(ids_of(tokens, 1), past_key_values=cache)
        del keep
    assert cache.get_seq_length() == 0
    assert torch.equal(greedy(one, prompt(20), cache), greedy(one, prompt(20)))


def test_a_model_that_drops_the_cache_it_is_given():
    model = copy.deepcopy(tiny("qwen3"))
    cache, own = BoundedCache(model, **LARGE), model.model.forward
    model.model.forward = lambda *args, past_key_values=None, cache=None, **kwargs: own(*args, **kwargs)
    with pytest.raises(RuntimeError, match="did not use the BoundedCache it was given"), torch.no_grad():
        model(ids_of(5, 1), past_key_values=cache)


def test_labels_with_a_text_longer_than_the_budget():
    model, ids = tiny("qwen3"), ids_of(60, 1)
    cache = BoundedCache(model, budget=44)
    with pytest.warns(UserWarning, match="this loss is that of the full cache"):
        out = model(ids, labels=ids, past_key_values=cache)
    full = model(ids, labels=ids)
    torch.testing.assert_close(out.loss, full.loss)


def test_a_decode_step_pays_one_copy_and_waits_for_nothing(monkeypatch):
    model, ids = tiny("qwen3"), ids_of(30, 1)

    def operations():
        cache = BoundedCache(model, **LARGE)
        with torch.no_grad():
            model(ids[:, :20], past_key_values=cache)
            model(ids[:, 20:21], past_key_values=cache)
            with Watch() as watch:
                model(ids[:, 21:22], past_key_values=cache)
        assert not WAITS & set(watch.names)
        return Counter(watch.names)

    ours = operations()
    monkeypatch.setattr(SeenColumns, "take", lambda *args: None)
    assert ours - operations() == Counter({"copy_": 1, "select": 2})


def calls_of_generate(model):
    """All ways in which people call it, each a function of the ids, the cache and further settings."""
    plain = model.generate

    def fetched_before(ids, cache, **settings):
        return plain(ids, past_key_values=cache, **settings)

    def with_a_config(ids, cache, **settings):
        return model.generate(ids, transformers.GenerationConfig(**settings), past_key_values=cache)

    def of_the_class(ids, cache, **settings):
        return type(model).generate(model, ids, past_key_values=cache, **settings)

    def with_an_empty_keyword(ids, cache, **settings):
        return model.generate(ids, input_ids=None, past_key_values=cache, **settings)

    return [fetched_before, with_a_config, of_the_class, with_an_empty_keyword]


@pytest.mark.parametrize("way", range(4))
def test_however_generate_is_called(way):
    model = tiny("qwen3")
    call = calls_of_generate(model)[way]
    settings = dict(max_new_tokens=5, do_sample=False, pad_token_id=0)
    cache = BoundedCache(model, **LARGE)
    call(ids_of(20, 1), cache, **settings)
    with pytest.raises(ValueError, match="does not continue"):
        call(ids_of(60, 5), cache, **settings)
    with pytest.raises(ValueError, match="use_cache=False together"):
        call(ids_of(20, 1), BoundedCache(model, **LARGE), use_cache=False, **settings)


@pytest.mark.skipif(not IS_NEW, reason="older releases do not tell a cache that it is used")
def test_a_cache_of_the_decoder_inside():
    model = copy.deepcopy(tiny("qwen3"))
    cache = BoundedCache(model.get_decoder(), **LARGE)
    with pytest.raises(ValueError, match="made for a Qwen3Model, and generate.. was called of another model around it"):
        write(model, ids_of(20, 1), cache)
    with torch.no_grad():
        model.get_decoder()(ids_of(20, 1), past_key_values=cache)


@pytest.mark.parametrize(("rows", "hidden"), [(1, 5), (3, 0)])
def test_a_mask_of_other_rows(rows, hidden):
    model, ids = tiny("qwen3"), ids_of(20, 1).expand(2, -1)
    mask = torch.ones(rows, 20, dtype=torch.int64)
    mask[:, :hidden] = 0
    with pytest.raises(ValueError, match=f"the attention mask has {rows} rows for a batch of 2"):
        model(ids, attention_mask=mask, past_key_values=BoundedCache(model, **LARGE))


PICTURE, START, END = 60, 62, 63


def reader_of_pictures():
    """A tiny Qwen3-VL, and a first turn with a picture of 16 tokens."""
    torch.manual_seed(0)
    rope = dict(rope_type="default", mrope_section=[2, 1, 1], mrope_interleaved=True)
    text = dict(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters=rope | dict(rope_theta=1e4),
    )
    vision = dict(
        depth=3,
        hidden_size=32,
        intermediate_size=32,
        num_heads=2,
        out_hidden_size=48,
        deepstack_visual_indexes=[0, 1],
        num_position_embeddings=64,
        patch_size=4,
        spatial_merge_size=2,
        temporal_patch_size=1,
    )
    tokens = dict(image_token_id=PICTURE, video_token_id=61, vision_start_token_id=START, vision_end_token_id=END)
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
    ids = torch.tensor([[5, 6, START, *[PICTURE] * 16, END, 7, 8, 9]])
    return transformers.Qwen3VLForConditionalGeneration(config).eval(), ids


@pytest.mark.skipif(not IS_NEW, reason="written for the arguments of newer releases")
def test_a_second_turn_after_a_picture():
    """Positions of M-RoPE lie before the number of tokens once there was a picture."""
    model, ids = reader_of_pictures()
    picture = dict(pixel_values=torch.randn(64, 48), image_grid_thw=torch.tensor([[1, 8, 8]]))
    texts, settings = [], dict(max_new_tokens=5, do_sample=False)
    for cache in (DynamicCache(config=model.config), BoundedCache(model, **LARGE)):
        kinds = {"mm_token_type_ids": (ids == PICTURE).int()}
        turn = model.generate(input_ids=ids, **picture, **kinds, past_key_values=cache, **settings)
        turn = torch.cat([turn, torch.tensor([[11, 12, 13, 14]])], dim=1)
        kinds = {"mm_token_type_ids": (turn == PICTURE).int()}
        mask = torch.ones_like(turn)
        texts.append(model.generate(input_ids=turn, attention_mask=mask, **kinds, past_key_values=cache, **settings))
    assert torch.equal(*texts)
    turn[0, 1] = 9
    with pytest.raises(ValueError, match="token 1 of row 0"):
        model.generate(input_ids=turn.repeat(1, 2), past_key_values=cache, **settings)
