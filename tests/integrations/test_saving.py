"""Models and caches that are saved, pickled and copied while a cache lives."""

import copy
import io
import json
import pickle
import subprocess
import sys

import pytest
import torch
import transformers

from beaconkv import BoundedCache
from tests.tiny import IS_NEW, greedy, prompt, tiny


def test_a_model_is_saved_as_if_it_had_no_cache(tmp_path):
    model = copy.deepcopy(tiny("qwen3"))
    expected = greedy(model, prompt(20))
    with BoundedCache(model, budget=40, protect=8) as cache:
        greedy(model, prompt(20), cache)
        model.save_pretrained(tmp_path)
    assert "beaconkv" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(greedy(loaded, prompt(20)), expected)


def test_a_pickled_model_knows_nothing_of_its_caches(tmp_path):
    model = copy.deepcopy(tiny("qwen3"))
    expected = greedy(model, prompt(20), new_tokens=5)
    with BoundedCache(model, budget=40, protect=8) as cache:
        greedy(model, prompt(20), cache)
        torch.save(model, tmp_path / "model.pt")
        twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(greedy(twin, prompt(20), new_tokens=5), expected)
    with BoundedCache(twin, budget=40, protect=8) as own:
        greedy(twin, prompt(20), own, new_tokens=60)
        assert own.stats.evictions > 2
    script = (  # in a process that does not know beaconkv's attention functions
        "import sys, torch; model = torch.load(sys.argv[1], weights_only=False);"
        "ids = torch.tensor([eval(sys.argv[2])]);"
        "out = model.generate(ids, attention_mask=ids > 0, max_new_tokens=5, do_sample=False, pad_token_id=0);"
        "print(out[0, 20:].tolist())"
    )
    ids = prompt(20)["input_ids"][0].tolist()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "model.pt"), str(ids)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == expected[0].tolist()


def test_a_cache_says_why_it_is_not_pickled():
    cache = BoundedCache(tiny("qwen3"), budget=40, protect=8)
    for attempt in (pickle.dumps, copy.copy, lambda c: torch.save(c, io.BytesIO())):
        with pytest.raises(
            TypeError, match=r"cannot be pickled, saved or copied.*copy.deepcopy\(\) makes an independent"
        ):
            attempt(cache)


def test_generate_of_a_copy_is_its_own():
    model = copy.deepcopy(tiny("qwen3"))
    before = vars(model).get("generate")  # a plain one, if a cache of the copied model lives in a traceback
    with BoundedCache(model, budget=40, protect=8):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(0.5)
        assert twin.generate.__self__ is twin
        assert not torch.equal(greedy(twin, prompt(20)), greedy(model, prompt(20)))
    assert vars(model).get("generate") is before


def test_a_generate_that_was_there_before_is_put_back():
    model = copy.deepcopy(tiny("qwen3"))
    calls, plain = [], model.generate

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return plain(*args, **kwargs)

    model.generate = counted
    with BoundedCache(model, budget=400) as cache:
        assert torch.equal(greedy(model, prompt(20), cache), greedy(model, prompt(20)))
    assert model.generate is counted
    assert len(calls) == 2


@pytest.mark.skipif(not IS_NEW, reason="older releases cannot do it on a CPU")
def test_continuous_batching_beside_a_living_cache():
    """transformers' own paged cache looks the attention implementation up by its plain name."""
    script = (
        "import os, torch, transformers; from tests.tiny import prompt, tiny; from beaconkv import BoundedCache;"
        "model = tiny('qwen3'); ids = prompt(12)['input_ids'];"
        "cache = BoundedCache(model, budget=64);"
        "model.generate(ids, past_key_values=cache, max_new_tokens=3, do_sample=False, pad_token_id=0);"
        "plain = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)[0, 12:].tolist();"
        "settings = transformers.GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1, pad_token_id=0,"
        " num_blocks=8, max_batch_tokens=32);"
        "out = model.generate_batch(inputs=[ids[0].tolist()], generation_config=settings);"
        "got = [result.generated_tokens for result in out.values()];"
        "print('same' if got == [plain] else (got, plain), flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr[-2000:]
