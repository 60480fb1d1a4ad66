"""Compiled steps do what eager steps do, on the same cache, and may alternate with them."""

import copy
import gc
import shutil

import pytest
import torch
import transformers
from packaging.version import Version

from beaconkv import BoundedCache
from beaconkv.integrations.transformers.compiled import CompiledDecoder
from tests.tiny import greedy, prompt, tiny

SMALL = dict(budget=32, prefix=2, protect=6)


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """Before, and none left after: what is compiled keeps its cache, and so the model's attachment, alive."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()


def read(model, cache, ids, mask=None):
    more = {} if mask is None else {"attention_mask": mask}
    return model(ids, past_key_values=cache, use_cache=True, **more).logits[:, -1:]


@torch.no_grad()
def run(model, policy, lengths, backend="eager", steps=45, **settings):
    """Logits of eager and of compiled steps, and both caches; every seventh compiled step is an eager one."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 60, (len(lengths), max(lengths) + steps), generator=generator)
    real = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    mask = None if real.all() else real.long()
    eager, compiled = (BoundedCache(model, policy, **{**SMALL, **settings}) for _ in range(2))
    for cache in (eager, compiled):
        read(model, cache, ids[:, : max(lengths)], mask)
    decoder = CompiledDecoder(model, compiled, backend=backend)
    for step in range(steps):
        at = max(lengths) + step
        new = ids[:, at : at + 1]
        position = torch.tensor(lengths)[:, None] + step
        expected = model(new, past_key_values=eager, use_cache=True, position_ids=position).logits
        if step % 7 == 6:
            got = model(new, past_key_values=compiled, use_cache=True, position_ids=position).logits
        else:
            got = decoder(new)
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=1e-3)
    return eager, compiled


def assert_alike(eager, compiled):
    for host in eager._bounded:
        assert torch.equal(eager.positions(host.layer.index), compiled.positions(host.layer.index))
    for name in ("tokens_seen", "entries", "peak_entries", "evictions", "entries_dropped", "kv_bytes"):
        assert getattr(eager.stats, name) == getattr(compiled.stats, name)
    assert compiled.stats.evictions > 5
    compiled.check_integrity()


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3-yarn", "phi3", "glm4", "qwen3-moe", "smollm3"])
def test_every_family(family):
    if family == "qwen3-moe" and Version(transformers.__version__) < Version("5"):
        pytest.skip("in transformers 4.x its experts are looped over by their numbers: no compiled graph")
    assert_alike(*run(tiny(family), "beaconkv", [20]))


@pytest.mark.parametrize("policy", ["rkv", "h2o", "streaming_llm", "random_history"])
def test_policies_with_rows_of_unequal_length(policy):
    assert_alike(*run(tiny(), policy, [3, 40, 17]))


def test_staggered():
    assert_alike(*run(tiny(), "beaconkv", [20, 20], stagger=2))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_inductor():
    assert_alike(*run(tiny(), "beaconkv", [3, 20], backend="inductor"))


def test_a_new_cache_of_the_same_size_is_not_compiled_again():
    model, counters = tiny(), torch._dynamo.utils.counters["stats"]
    run(model, "beaconkv", [20])
    before = counters["unique_graphs"]
    assert before > 0
    assert_alike(*run(model, "beaconkv", [33]))
    assert counters["unique_graphs"] == before


def test_more_sizes_than_one_code_object_may_have():
    for budget in range(20, 31):
        run(tiny(), "beaconkv", [9], steps=3, budget=budget, protect=4)


def test_a_step_that_breaks_off_is_noticed():
    model = tiny()
    cache = BoundedCache(model, "beaconkv", **SMALL)
    read(model, cache, torch.ones(1, 9, dtype=torch.int64))
    decoder = CompiledDecoder(model, cache, backend="eager")

    def fail(*args):
        raise ValueError("boom")

    handle = model.model.layers[1].register_forward_pre_hook(fail)
    one = torch.ones(1, 1, dtype=torch.int64)
    with pytest.raises(Exception, match="boom"):
        decoder(one)
    handle.remove()
    with pytest.raises(RuntimeError, match="broke off"):
        read(model, cache, one)
    with pytest.raises(RuntimeError, match="broke off"):
        decoder(one)
    cache.reset()
    read(model, cache, torch.ones(1, 9, dtype=torch.int64))
    decoder(one)


def test_a_cache_that_is_detached_or_of_another_model():
    model = tiny()
    cache = BoundedCache(model, "beaconkv", **SMALL)
    read(model, cache, torch.ones(1, 9, dtype=torch.int64))
    with pytest.raises(ValueError, match="made for another model"):
        CompiledDecoder(tiny("qwen3"), cache)
    decoder = CompiledDecoder(model, cache, backend="eager")
    with pytest.raises(ValueError, match="ids must be integers, got torch.float32"):
        decoder(torch.ones(1, 1))
    cache.detach()
    with pytest.raises(RuntimeError, match="was detached"):
        decoder(torch.ones(1, 1, dtype=torch.int64))


def test_what_cannot_be_compiled_is_refused():
    model = tiny()
    cache = BoundedCache(model, "full")
    with pytest.raises(ValueError, match="compiled steps need a budget that is fixed"):
        CompiledDecoder(model, cache)
    cache = BoundedCache(model, "rpc:growing-1024")
    with pytest.raises(ValueError, match="compiled steps need a budget that is fixed"):
        CompiledDecoder(model, cache)
    cache = BoundedCache(model, "beaconkv", **SMALL)
    decoder = CompiledDecoder(model, cache, backend="eager")
    with pytest.raises(ValueError, match="the cache is empty"):
        decoder(torch.ones(1, 1, dtype=torch.int64))
    read(model, cache, torch.ones(2, 9, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"ids must be \(B, 1\) = \(2, 1\), got \(1, 1\)"):
        decoder(torch.ones(1, 1, dtype=torch.int64))
    cache = BoundedCache(model, "kmeans_centroid", **SMALL)
    read(model, cache, torch.ones(1, 9, dtype=torch.int64))
    with pytest.raises(ValueError, match="policy 'kmeans_centroid' .* cannot be stepped together"):
        CompiledDecoder(model, cache, backend="eager")(torch.ones(1, 1, dtype=torch.int64))


def compile_model(model):
    return torch.compile(model, backend="eager")


def compile_in_place(model):
    model.compile(backend="eager")
    return model


def compile_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compile_decoder(model):
    model.model = torch.compile(model.model, backend="eager")
    return model


def compile_attention(model):
    for layer in model.model.layers:
        layer.self_attn.forward = torch.compile(layer.self_attn.forward, backend="eager")
    return model


@pytest.mark.parametrize("before", [True, False], ids=["before the cache", "after the cache"])
@pytest.mark.parametrize(
    "way",
    [compile_model, compile_in_place, compile_forward, compile_decoder, compile_attention],
    ids=lambda f: f.__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_of_a_model_in_the_usual_ways(way, before):
    """The tokens are right, or the call says what to use; with no cache of ours the compiled model works as ever."""
    model = copy.deepcopy(tiny("llama", num_hidden_layers=1))
    inputs = prompt(20)
    expected, plain = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=20), greedy(model, inputs)
    try:
        if before:
            compiled = way(model)
            cache = BoundedCache(compiled, **SMALL)
        else:
            cache = BoundedCache(model, **SMALL)
            compiled = way(model)
        assert torch.equal(greedy(compiled, inputs, cache, new_tokens=20), expected)
    except RuntimeError as error:
        assert "torch.compile" in str(error)  # noqa: PT017 - either is right
        assert "beaconkv.CompiledDecoder" in str(error)  # noqa: PT017
    assert torch.equal(greedy(compiled, inputs), plain)


@pytest.mark.filterwarnings("ignore")
def test_layers_that_are_compiled_one_by_one():
    """Their attention runs as it is; what a layer keeps is right over evictions."""
    model = copy.deepcopy(tiny("llama", num_hidden_layers=2))
    expected = greedy(model, prompt(20), BoundedCache(model, **SMALL), new_tokens=30)
    for layer in model.model.layers:
        layer.compile(backend="eager")
    cache = BoundedCache(model, **SMALL)
    assert torch.equal(greedy(model, prompt(20), cache, new_tokens=30), expected)
    assert cache.stats.evictions > 3
