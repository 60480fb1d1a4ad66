"""One message and its answer."""

import pytest

import beaconkv
from beaconkv import BoundedCache
from beaconkv.evaluation import load_tasks
from beaconkv.evaluation.answers.decoding import Sampling
from beaconkv.evaluation.answers.generation import generate_text, write_text

loaded = beaconkv.models.load("reasoner")
PROMPT = load_tasks("plan@0.25", samples=1)[0].problems[0].prompt


def test_the_answer_and_the_numbers_of_its_cache():
    cache = BoundedCache(loaded.model, "rkv", 96)
    result = generate_text(loaded, cache, PROMPT, model="reasoner", policy="rkv", max_new_tokens=120)
    ids = loaded.tokenizer(PROMPT)["input_ids"]
    assert (result["prompt_tokens"], result["policy"]["spec"]) == (len(ids), "rkv")
    assert 0 < result["new_tokens"] <= 120
    assert result["stats"]["entries"] <= 96 < result["stats"]["tokens_seen"]
    assert result["schedule"]["budget"] == 96
    assert {"model", "seed", "sampling"} <= result.keys()
    assert result["tokens_per_second"] == pytest.approx(result["new_tokens"] / result["seconds"], rel=0.1)


def test_generate_and_the_batched_writer_agree():
    """The two ways to an answer, with the full cache and greedy, write the same tokens."""
    counted = []
    ids, prompt = write_text(loaded, PROMPT, Sampling(150), 0, chat=False, advance=counted.append)
    cache = BoundedCache(loaded.model, "full")
    text = generate_text(loaded, cache, PROMPT, model="reasoner", policy="full", max_new_tokens=150)["text"]
    assert ids[:prompt] == loaded.tokenizer(PROMPT)["input_ids"]
    assert loaded.tokenizer.decode(ids[prompt:], skip_special_tokens=True) == text
    assert len(ids) - prompt - sum(counted) in (0, 1)  # the prompt's own pass gives the first token


def test_sampling_follows_the_seed():
    def answer(seed):
        cache = BoundedCache(loaded.model, "full")
        settings = dict(model="reasoner", policy="full", max_new_tokens=60, temperature=3.0, seed=seed)
        return generate_text(loaded, cache, PROMPT, **settings)["text"]

    assert answer(1) == answer(1) != answer(2)


def test_a_prompt_needs_tokens():
    with pytest.raises(ValueError, match="the prompt is empty"):
        write_text(loaded, "", Sampling(10), 0, chat=False)
