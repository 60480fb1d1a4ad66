"""What is attached to a model is detached again, and nothing stays on it in between."""

import copy
import gc
import threading

import pytest
import torch
from transformers import DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from beaconkv import BoundedCache
from tests.tiny import FURTHER, greedy, kernels, prompt, tiny

SMALL = dict(budget=40, protect=8)


def fingerprint(model):
    """Everything of a model that attaching could leave behind."""
    hooks = [(name, len(m._forward_pre_hooks), len(m._forward_hooks)) for name, m in model.named_modules()]
    attributes = [(name, sorted(vars(m))) for name, m in model.named_modules()]
    return model.config._attn_implementation, hooks, attributes


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_the_model_is_as_before_when_the_cache_is_gone(family):
    for kernel in kernels(family):
        model = tiny(family, kernel)
        before = fingerprint(model)
        cache = BoundedCache(model, **SMALL)
        assert model.config._attn_implementation == kernel  # it is another one during a call only
        greedy(model, prompt(20), cache)
        del cache
        gc.collect()
        assert fingerprint(model) == before


def test_with_block_detaches_and_a_detached_cache_is_refused():
    model = tiny()
    before = fingerprint(model)
    with BoundedCache(model, **SMALL) as cache:
        greedy(model, prompt(20), cache)
    assert fingerprint(model) == before
    with pytest.raises(RuntimeError, match="detached from its model; make a new one"):
        model(prompt(3)["input_ids"], past_key_values=cache, use_cache=True)


def test_several_caches_of_one_model():
    model = tiny()
    before = fingerprint(model)
    first, second = BoundedCache(model, **SMALL), BoundedCache(model, "streaming_llm", 64)
    expected = greedy(model, prompt(20), BoundedCache(model, "streaming_llm", 64), new_tokens=80)
    first.detach()
    first.detach()
    assert torch.equal(greedy(model, prompt(20), second, new_tokens=80), expected)
    second.detach()
    gc.collect()
    assert fingerprint(model) == before


def test_while_attached_other_caches_do_what_they_did():
    for family in ("llama", "gemma3", "gpt-oss"):
        for kernel in kernels(family):
            model, inputs = tiny(family, kernel), prompt(9, 30)
            plain = greedy(model, inputs)
            no_cache = model(inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False).logits
            with BoundedCache(model, **SMALL):
                assert torch.equal(greedy(model, inputs), plain)
                assert torch.equal(greedy(model, inputs, DynamicCache(config=model.config)), plain)
                again = model(inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False).logits
                assert torch.equal(again, no_cache)


def test_two_threads_with_a_cache_each():
    model = tiny()
    jobs = [(prompt(20, seed=1), BoundedCache(model, **SMALL)), (prompt(33, seed=2), BoundedCache(model, **SMALL))]
    expected = [greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=120) for inputs, _ in jobs]
    results = [None, None]

    def work(i):
        results[i] = greedy(model, *jobs[i], new_tokens=120)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(results, expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("where", ["attention", "mlp"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_an_exception_in_the_middle_leaves_the_model_clean(family, where, monkeypatch):
    model, inputs = tiny(family), prompt(20)
    before, plain = fingerprint(model), greedy(model, inputs)
    expected = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=60)
    cache = BoundedCache(model, **SMALL)
    greedy(model, inputs, cache)
    layer = model.model.layers[1]
    broken = layer.self_attn.o_proj if where == "attention" else layer.mlp

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broken, "forward", fail)
        with pytest.raises(KeyboardInterrupt):
            model(inputs["input_ids"][:, :1], past_key_values=cache, use_cache=True)
    with pytest.raises(RuntimeError, match="broke off between two layers"):
        model(inputs["input_ids"][:, :1], past_key_values=cache, use_cache=True)
    assert torch.equal(greedy(model, inputs), plain)
    cache.reset()
    assert torch.equal(greedy(model, inputs, cache, new_tokens=60), expected)
    del cache
    gc.collect()
    assert fingerprint(model) == before


def test_a_changed_attention_implementation_is_followed(monkeypatch):
    """Also to one that no cache of this process was made with."""
    for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        monkeypatch.delitem(type(functions)._global_mapping, "beaconkv_eager", raising=False)
    model = tiny()
    try:
        with BoundedCache(model, **SMALL) as cache:
            model.config._attn_implementation = "eager"
            logits = model(prompt(20)["input_ids"], past_key_values=cache, output_attentions=True)
            assert logits.attentions[0].shape == (1, 6, 20, 20)  # which sdpa does not give
            model.config._attn_implementation = "flex_attention"
            with pytest.raises(ValueError, match="'flex_attention' cannot be bounded; choose from sdpa, eager"):
                model(prompt(1)["input_ids"], past_key_values=cache)
        assert model.config._attn_implementation == "flex_attention"
    finally:
        model.config._attn_implementation = "sdpa"


def test_the_caches_memory_goes_with_it():
    import weakref

    model = tiny()
    cache = BoundedCache(model, **SMALL)
    greedy(model, prompt(20), cache)
    slab = weakref.ref(cache._bounded[0].layer.slab.keys)
    del cache
    gc.collect()
    assert slab() is None


def test_models_that_share_a_config():
    first = tiny("qwen3")
    second = copy.deepcopy(first)
    second.config = first.config
    for module in second.modules():
        if hasattr(module, "config"):
            module.config = first.config
    expected = greedy(second, prompt(20), BoundedCache(second, **SMALL), new_tokens=60)
    one, two = BoundedCache(first, **SMALL), BoundedCache(second, **SMALL)
    one.detach()
    assert torch.equal(greedy(second, prompt(20), two, new_tokens=60), expected)
    two.detach()
    gc.collect()
    assert first.config._attn_implementation == "sdpa"


def test_a_model_and_the_model_inside_it():
    outer = tiny()
    ids = prompt(20)["input_ids"]
    one, two = BoundedCache(outer, **SMALL), BoundedCache(outer.model, **SMALL)
    with torch.no_grad():
        outer(ids, past_key_values=one, use_cache=True)
        outer.model(ids, past_key_values=two, use_cache=True)
    assert one.get_seq_length() == two.get_seq_length() == 20
    assert torch.equal(one.positions(0), two.positions(0))


def test_a_copy_of_an_attached_model():
    """copy.deepcopy takes hooks and config along; neither may be in the way of the copy's own caches."""
    model = tiny()
    cache = BoundedCache(model, **SMALL)
    expected = greedy(model, prompt(20), cache, new_tokens=60)
    twin = copy.deepcopy(model)
    del cache
    gc.collect()
    with BoundedCache(twin, **SMALL) as own:
        assert torch.equal(greedy(twin, prompt(20), own, new_tokens=60), expected)
    assert twin.config._attn_implementation == "sdpa"


def test_the_check_of_rope_takes_no_random_numbers():
    model = copy.deepcopy(tiny())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    greedy(model, prompt(20), BoundedCache(model, **SMALL), new_tokens=3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("same_model", [True, False])
@pytest.mark.parametrize("where", ["require_kernels", "_wrap", "_unwrap"])
def test_the_collector_may_release_a_cache_while_another_is_attached(same_model, where, monkeypatch):
    """A cache in a reference cycle dies whenever the collector runs, also in the middle of attaching or of a call."""
    from beaconkv.integrations.transformers.attachment import Attachment

    model = tiny()
    other = model if same_model else copy.deepcopy(model)
    if not same_model:
        for module in other.modules():
            if hasattr(module, "config"):
                module.config = model.config
    gc.collect()
    gc.disable()
    try:
        dying = BoundedCache(other, **SMALL)
        dying.itself = dying
        del dying
        step, calls = getattr(Attachment, where), []

        def act_and_collect(self, *args):
            step(self, *args)
            calls.append(1)
            if len(calls) < 4:
                gc.collect()

        monkeypatch.setattr(Attachment, where, act_and_collect)
        cache = BoundedCache(model, **SMALL)
        greedy(model, prompt(20), cache, new_tokens=60)
        monkeypatch.undo()
    finally:
        gc.enable()
    assert cache.stats.evictions > 3
    cache.detach()
    assert model.config._attn_implementation == "sdpa"


def fails_once(module, error):
    """The module fails at its next call, and never again."""
    left = [1]

    def fail(*args):
        if left:
            left.clear()
            raise error

    module.register_forward_pre_hook(fail)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("where", ["last mlp", "head", "decode"])
@pytest.mark.parametrize("family", ["qwen3", *(name for name in FURTHER if name == "qwen3.5")])
def test_a_pass_that_broke_off_when_all_was_stored(family, where, error):
    """In all layers, or in layers that do not count: the same call again would feed the tokens twice."""
    model = copy.deepcopy(tiny(family))
    cache, ids = BoundedCache(model, budget=400), prompt(21)["input_ids"]
    with torch.no_grad():
        if where == "decode":
            model(ids[:, :20], past_key_values=cache)
            new = ids[:, 20:]
            fails_once(model.model.layers[0 if family == "qwen3.5" else -1].mlp, error)
        else:
            new = ids
            fails_once(model.lm_head if where == "head" else model.model.layers[-1].mlp, error)
        with pytest.raises(type(error)):
            model(new, past_key_values=cache)
        for again in (lambda: model(new, past_key_values=cache), lambda: greedy(model, prompt(30), cache)):
            with pytest.raises(RuntimeError, match="broke off"):
                again()
        cache.reset()
        assert torch.equal(greedy(model, prompt(20), cache), greedy(model, prompt(20)))


def test_an_interrupted_call_leaves_no_name_behind():
    """torch runs no hook after a KeyboardInterrupt; the next call of the model, or reset(), puts the name back."""
    for what in ("another call", "reset"):
        model = copy.deepcopy(tiny("qwen3"))
        cache = BoundedCache(model, budget=400)
        fails_once(model.model.layers[1].mlp, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            greedy(model, prompt(20), cache)
        if what == "reset":
            cache.reset()
            decoder = model.get_decoder()
            with torch.no_grad():
                for _ in range(3):
                    decoder(prompt(3)["input_ids"], past_key_values=cache)
            assert cache.get_seq_length() == 9
        else:
            greedy(model, prompt(5))
        assert model.config._attn_implementation == "sdpa"
        assert copy.deepcopy(model).config._attn_implementation == "sdpa"


def test_a_wrapper_that_passes_attributes_on():
    class Wrapper(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.inner = model

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

    model = Wrapper(tiny("qwen3"))
    cache, ids = BoundedCache(model, budget=400), prompt(20)["input_ids"]
    with torch.no_grad():
        assert torch.equal(model(ids, past_key_values=cache).logits, tiny("qwen3")(ids).logits)


def test_a_shallow_copy_of_a_model_writes_by_itself():
    model = copy.deepcopy(tiny("qwen3"))
    with BoundedCache(model, budget=400):
        other = copy.copy(model)
        other._modules = dict(model._modules)
        other.lm_head = torch.nn.Linear(48, 61, bias=False)
        got = greedy(other, prompt(20))
    assert torch.equal(got, greedy(other, prompt(20)))
    assert not torch.equal(got, greedy(model, prompt(20)))
