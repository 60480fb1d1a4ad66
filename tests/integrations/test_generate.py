"""generate() with a bounded cache, in all the ways people call it."""

import copy as copy_module

import pytest
import torch

from beaconkv import BoundedCache, policies
from tests.tiny import FAMILIES, greedy, kernels, prompt, tiny

SMALL = dict(budget=40, protect=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_budget_that_is_never_reached_gives_the_plain_tokens(family):
    for kernel in kernels(family):
        model = tiny(family, kernel)
        for inputs in (prompt(30), prompt(9, 30, 1)):
            plain = greedy(model, inputs)
            cache = BoundedCache(model, budget=128)
            assert torch.equal(greedy(model, inputs, cache), plain), kernel
            assert cache.stats.evictions == 0
            assert len(set(plain.flatten().tolist())) >= 8  # the comparison compares something


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen3-yarn", "gpt-oss"])
def test_reduced_precision(family, dtype):
    for kernel in kernels(family):
        model, inputs = tiny(family, kernel, dtype), prompt(30)
        assert torch.equal(greedy(model, inputs, BoundedCache(model, budget=128)), greedy(model, inputs))
        cache = BoundedCache(model, **SMALL)
        greedy(model, inputs, cache, new_tokens=90)
        cache.check_integrity()
        assert cache.stats.evictions > 5
        assert cache.stats.kv_bytes == cache.stats.formula_bytes


@pytest.mark.parametrize("policy", [name for name, cls in policies().items() if cls.evicts])
def test_every_policy(policy):
    model, inputs = tiny(), prompt(5, 40)
    assert torch.equal(greedy(model, inputs, BoundedCache(model, policy, 128)), greedy(model, inputs))
    cache = BoundedCache(model, policy, **SMALL)
    greedy(model, inputs, cache, new_tokens=90)
    cache.check_integrity()
    assert cache.stats.evictions > 5


def test_full_policy_is_the_plain_cache():
    model, inputs = tiny(), prompt(5, 40)
    cache = BoundedCache(model, "full")
    assert torch.equal(greedy(model, inputs, cache, new_tokens=1100), greedy(model, inputs, new_tokens=1100))
    assert cache.stats.entries == cache.stats.tokens_seen == 40 + 1099
    assert cache.stats.evictions == 0


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_rows_of_a_padded_batch_are_as_alone(family):
    """Lengths 5, 40 and 200 in one left-padded batch, 300 new tokens."""
    model, inputs = tiny(family), prompt(5, 40, 200)
    settings = dict(budget=64, protect=8)
    events = []
    cache = BoundedCache(model, on_evict=events.append, **settings)
    together = greedy(model, inputs, cache, new_tokens=300)
    cache.check_integrity()
    layer = cache._bounded[0].layer.index
    for row, length in enumerate((5, 40, 200)):
        alone = {k: v[row : row + 1, 200 - length :] for k, v in inputs.items()}
        own = BoundedCache(model, **settings)
        assert torch.equal(greedy(model, alone, own, new_tokens=300)[0], together[row])
        held = cache.positions(layer)[row]
        assert torch.equal(own.positions(layer)[0], held[:, : own.stats.entries])
        assert (held[:, own.stats.entries :] == -1).all()
    assert {row for e in events for row in e.rows} == {0, 1, 2}


def test_permuted_batch_gives_permuted_results():
    model, inputs = tiny(), prompt(5, 40, 200, 40)
    order = torch.tensor([2, 0, 3, 1])
    straight = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=120)
    permuted = greedy(model, {k: v[order] for k, v in inputs.items()}, BoundedCache(model, **SMALL), new_tokens=120)
    assert torch.equal(straight[order], permuted)


def test_sampling_with_one_seed_gives_one_result():
    model, inputs = tiny(), prompt(20)
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        cache = BoundedCache(model, **SMALL)
        runs.append(
            model.generate(**inputs, past_key_values=cache, do_sample=True, max_new_tokens=90, num_return_sequences=3)
        )
        assert cache.positions(0).shape[0] == 3
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert len({tuple(row.tolist()) for row in runs[0]}) == 3


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("inputs", [prompt(20), prompt(6, 20)], ids=["one", "padded"])
def test_beams(family, inputs):
    model = tiny(family)
    arguments = dict(num_beams=3, new_tokens=60)
    plain = greedy(model, inputs, **arguments)
    assert torch.equal(greedy(model, inputs, BoundedCache(model, budget=128), **arguments), plain)
    cache = BoundedCache(model, **SMALL)
    first = greedy(model, inputs, cache, **arguments)
    cache.check_integrity()
    assert cache.stats.evictions > 5
    assert torch.equal(greedy(model, inputs, BoundedCache(model, **SMALL), **arguments), first)


def test_beams_follow_the_queries_and_positions_of_their_parent():
    """Each beam's next logits equal those of its own text fed to a fresh cache."""
    model, inputs = tiny(), prompt(20)
    cache = BoundedCache(model, **SMALL)
    out = model.generate(
        **inputs, past_key_values=cache, num_beams=2, num_return_sequences=2, max_new_tokens=70, do_sample=False
    )
    held = cache.positions(0)
    for beam in range(2):
        fresh = BoundedCache(model, **SMALL)
        with torch.no_grad():
            model(out[beam : beam + 1, :20], past_key_values=fresh, use_cache=True)
            for t in range(20, out.shape[1] - 1):
                model(out[beam : beam + 1, t : t + 1], past_key_values=fresh, use_cache=True)
        assert any(torch.equal(fresh.positions(0)[0], row) for row in held)


def test_second_turn_on_the_same_cache():
    """A second user message continues on what is held; with room for all it is the plain cache."""
    model = tiny()
    first, second = prompt(30)["input_ids"], prompt(25, seed=5)["input_ids"]

    def talk(cache):
        out = model.generate(first, past_key_values=cache, max_new_tokens=40, do_sample=False)
        turn = torch.cat([out, second], 1)
        return model.generate(turn, past_key_values=cache, max_new_tokens=40, do_sample=False)

    from transformers import DynamicCache

    assert torch.equal(talk(BoundedCache(model, budget=256)), talk(DynamicCache(config=model.config)))
    cache = BoundedCache(model, **SMALL)
    talk(cache)
    cache.check_integrity()
    assert cache.stats.tokens_seen == 30 + 40 + 25 + 39
    assert cache.get_seq_length() == cache.stats.tokens_seen


def test_a_copy_goes_on_by_itself():
    """copy.deepcopy is the usual way to reuse a prompt: the copy and the original do not touch each other."""
    model, ids = tiny(), prompt(60)["input_ids"]
    events = []
    cache = BoundedCache(model, on_evict=events.append, **SMALL)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    copy = copy_module.deepcopy(cache)
    turns = [torch.cat([ids, prompt(9, seed=s)["input_ids"]], 1) for s in (1, 2)]
    first = model.generate(turns[0], past_key_values=copy, max_new_tokens=60, do_sample=False)
    second = model.generate(turns[1], past_key_values=cache, max_new_tokens=60, do_sample=False)
    seen = len(events)
    del copy, cache
    for turn, expected in zip(turns, (first, second), strict=True):
        alone = BoundedCache(model, **SMALL)
        with torch.no_grad():
            model(ids, past_key_values=alone, use_cache=True)
        assert torch.equal(model.generate(turn, past_key_values=alone, max_new_tokens=60, do_sample=False), expected)
    assert seen == 3 * (1 + 2 * alone.stats.evictions - 2)


@pytest.mark.parametrize("chunk", [1, 7, 64, 500])
def test_our_prefill_chunks_equal_the_hosts(chunk):
    """A long prompt in chunks inside each layer gives what feeding the model chunk by chunk gives."""
    model, ids = tiny(), prompt(300)["input_ids"]
    inside = BoundedCache(model, prefill_chunk=chunk, **SMALL)
    outside = BoundedCache(model, **SMALL)
    with torch.no_grad():
        logits = model(ids, past_key_values=inside, use_cache=True).logits[:, -1]
        for part in ids.split(chunk, 1):
            expected = model(part, past_key_values=outside, use_cache=True).logits[:, -1]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(inside.positions(2), outside.positions(2))
    assert inside.stats.peak_entries < 40 + chunk or chunk == 500


def test_prompt_longer_than_the_budget_is_held_by_one_layer_at_a_time():
    model, held = tiny(), []

    def watch(event):
        layers = [host.layer for host in cache._bounded]
        held.append([sum(layer.slab.lengths) for layer in layers if layer.is_allocated])

    cache = BoundedCache(model, on_evict=watch, **SMALL)
    with torch.no_grad():
        model(prompt(500)["input_ids"], past_key_values=cache, use_cache=True)
    assert held == [[35], [35, 35], [35, 35, 35]]
    per_layer = cache.stats.kv_bytes // 3
    assert cache.stats.peak_kv_bytes - cache.stats.kv_bytes == per_layer * 500 // 40  # one prompt, one copy


def test_output_scope_keeps_the_whole_prompt():
    model, inputs = tiny(), prompt(70)
    cache = BoundedCache(model, scope="output", budget=24, protect=8)
    greedy(model, inputs, cache, new_tokens=90)
    cache.check_integrity()
    assert cache.stats.evictions > 5
    assert cache.stats.peak_entries == 70 + 24
    assert (cache.positions(0)[0, :, :70] == torch.arange(70)).all()


@pytest.mark.parametrize("end", range(8, 14))
def test_end_of_text_around_an_eviction(end):
    """The last token may come on the step before, at, or after an eviction."""
    model, inputs = tiny(), prompt(30)
    full = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=40)[0]
    cache = BoundedCache(model, **SMALL)
    token = full[end].item()
    stopped = greedy(model, inputs, cache, new_tokens=40, eos_token_id=token)[0]
    first = full.tolist().index(token)
    assert stopped.tolist() == full[: first + 1].tolist()
    cache.check_integrity()


def test_a_row_that_finishes_early_does_not_disturb_the_others():
    model, inputs = tiny(), prompt(30, 12)
    both = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=90)
    token = both[0, 5].item()
    cache = BoundedCache(model, **SMALL)
    stopped = greedy(model, inputs, cache, new_tokens=90, eos_token_id=token)
    cache.check_integrity()
    end = both[1].tolist().index(token) + 1 if token in both[1].tolist() else 90
    assert torch.equal(stopped[1, :end], both[1, :end])


def test_prompt_of_one_token():
    model, inputs = tiny(), prompt(1)
    assert torch.equal(greedy(model, inputs, BoundedCache(model, budget=128)), greedy(model, inputs))
    cache = BoundedCache(model, **SMALL)
    greedy(model, inputs, cache, new_tokens=120)
    cache.check_integrity()
    assert cache.stats.evictions > 5


def test_accelerate_hooks_and_offloaded_weights(tmp_path):
    """A model spread by a device map (here: some weights on disk) gives the same tokens."""
    accelerate = pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM

    model, inputs = tiny("qwen3"), prompt(9, 30)
    expected = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=60)
    model.save_pretrained(tmp_path / "model")
    copy = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"}
    device_map |= {"model.layers.2": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    copy = accelerate.dispatch_model(copy, device_map, main_device="cpu", offload_dir=str(tmp_path / "off"))
    cache = BoundedCache(copy, **SMALL)
    assert torch.equal(greedy(copy, inputs, cache, new_tokens=60), expected)


def scaled(kind):
    """A tiny Llama whose RoPE changes with the length."""
    from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

    from tests.tiny import _COMMON

    torch.manual_seed(2)
    if kind == "longrope":
        factors = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
        extra = dict(max_position_embeddings=256, original_max_position_embeddings=64, rope_scaling=factors)
        return Phi3ForCausalLM(Phi3Config(**{**_COMMON, "sliding_window": None, **extra})).eval()
    scaling = {"rope_type": kind, "factor": 2.0}
    config = {**_COMMON, "head_dim": 8, "max_position_embeddings": 40, "rope_scaling": scaling}
    return LlamaForCausalLM(LlamaConfig(**config)).eval()


@pytest.mark.filterwarnings("ignore:.*drops every cache")
@pytest.mark.parametrize("kind", ["dynamic", "linear", "longrope"])
def test_rope_that_changes_with_the_length(kind):
    """Frequencies change as the text grows; step by step the plain cache and ours agree to the last bit."""
    from transformers import DynamicCache

    model, ids = scaled(kind), prompt(50)["input_ids"]
    caches = [DynamicCache(config=model.config), BoundedCache(model, budget=256)]
    with torch.no_grad():
        for part in (ids, *prompt(60, seed=4)["input_ids"].split(1, 1)):
            plain, ours = (model(part, past_key_values=c, use_cache=True).logits for c in caches)
            assert torch.equal(plain, ours)
        small = BoundedCache(model, **SMALL)
        for part in (ids, *prompt(60, seed=4)["input_ids"].split(1, 1)):
            assert model(part, past_key_values=small, use_cache=True).logits.isfinite().all()
    small.check_integrity()
    assert small.stats.evictions > 5


def test_zero_padding_embeddings_do_not_mislead_the_check_of_rope():
    """Layers without RoPE are told from others even if the first token is padding with a zero embedding."""
    model = copy_module.deepcopy(tiny("smollm3"))
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 0.0
    together = greedy(model, prompt(12, 70), BoundedCache(model, budget=64, prefix=0, protect=4), new_tokens=150)
    inputs = {k: v[:1, 58:] for k, v in prompt(12, 70).items()}
    alone = copy_module.deepcopy(model)
    cache = BoundedCache(alone, budget=64, prefix=0, protect=4)
    assert torch.equal(greedy(alone, inputs, cache, new_tokens=150)[0], together[0])


@pytest.mark.parametrize("settings", [dict(scope="output", budget=24), dict(prefix="prompt", budget=64)])
@pytest.mark.parametrize("size", [8, 16, 33])
def test_a_prompt_in_several_passes_is_one_prompt(settings, size):
    """generate(prefill_chunk_size=...) feeds the prompt chunk by chunk; all of it stays protected."""
    model, inputs = tiny(), prompt(36)
    cache = BoundedCache(model, protect=8, **settings)
    with torch.no_grad():
        for chunk in inputs["input_ids"][:, :35].split(size, 1):
            if chunk.shape[1] > 1:
                model(chunk, past_key_values=cache, use_cache=True)
    fed = cache.get_seq_length()
    greedy(model, inputs, cache, new_tokens=90)
    cache.check_integrity()
    assert (cache.positions(1)[0, :, :fed] == torch.arange(fed)).all()
    assert cache.stats.kv_bytes == cache.stats.formula_bytes
    assert cache.stats.evictions > 2


def test_a_second_turn_of_ragged_messages():
    """Padding in the middle: the second turn's messages differ in length too."""
    model = tiny()
    first, second = prompt(9, 30), prompt(25, 6, seed=5)
    ids, mask = first["input_ids"], first["attention_mask"]

    def logits(rows, cache):
        seen, out = 0, []
        steps = [(ids, mask), *[(torch.full((2, 1), 7 + t), torch.ones(2, 1, dtype=torch.int64)) for t in range(50)]]
        steps += [(second["input_ids"], second["attention_mask"]), *steps[1:40]]
        whole = torch.cat([m for _, m in steps], 1)[rows]
        for tokens, own in steps:
            tokens, own = tokens[rows], own[rows]
            keep = own.bool().any(0) if len(rows) == 1 else torch.ones(own.shape[1], dtype=torch.bool)
            seen += own.shape[1]
            now = whole[:, :seen]
            positions = (now.cumsum(-1) - 1).clamp(min=0)[:, -own.shape[1] :][:, keep]
            used = now if len(rows) > 1 else torch.ones(1, int(now.sum()), dtype=torch.int64)
            result = model(
                tokens[:, keep], attention_mask=used, position_ids=positions, past_key_values=cache, use_cache=True
            )
            out.append(result.logits[:, -1])
        cache.check_integrity()
        return torch.stack(out, 1)

    with torch.no_grad():
        together = logits([0, 1], BoundedCache(model, **SMALL))
        for row in (0, 1):
            alone = logits([row], BoundedCache(model, **SMALL))
            torch.testing.assert_close(alone[0], together[row], atol=1e-4, rtol=1e-4)


def test_a_mask_longer_than_the_tokens_fed():
    """A mask prepared for the whole generation is read at the columns of the tokens fed."""
    model, inputs = tiny(), prompt(6, 20)
    longer = torch.cat([inputs["attention_mask"], torch.ones(2, 10, dtype=torch.int64)], 1)
    with torch.no_grad():
        caches = [BoundedCache(model, **SMALL) for _ in range(2)]
        for cache, mask in zip(caches, (inputs["attention_mask"], longer), strict=True):
            model(inputs["input_ids"], attention_mask=mask, past_key_values=cache, use_cache=True)
    assert torch.equal(caches[0].positions(0), caches[1].positions(0))
    assert caches[1].stats.tokens_seen == 20
    assert (caches[1].positions(0)[0] >= 0).sum(-1).tolist() == [6, 6]


def test_inference_mode_and_no_grad_may_alternate():
    model, ids = tiny(), prompt(50)["input_ids"]
    expected = greedy(model, prompt(50), BoundedCache(model, **SMALL), new_tokens=60)
    cache = BoundedCache(model, **SMALL)
    out, contexts = [], (torch.inference_mode, torch.no_grad)
    for step in range(60):
        with contexts[step % 2]():
            ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            out.append(ids.clone())
            if step == 20:
                cache.reorder_cache(torch.tensor([0]))
    assert torch.equal(torch.cat(out, 1), expected)


def test_the_prompt_is_freed_layer_by_layer(monkeypatch):
    """While a layer is under way, nothing keeps the whole prompt of an earlier one alive."""
    import weakref

    from beaconkv.integrations.transformers.host_layer import BoundedCacheLayer

    model, seen, alive = tiny(), {}, []
    update = BoundedCacheLayer.update

    def watch(self, key, value, *args, **kwargs):
        seen[self.layer.index] = weakref.ref(key.untyped_storage()), weakref.ref(key)
        return update(self, key, value, *args, **kwargs)

    def on_evict(event):
        alive.append([i for i, refs in seen.items() if any(ref() is not None for ref in refs) and i < event.layer])

    monkeypatch.setattr(BoundedCacheLayer, "update", watch)
    cache = BoundedCache(model, on_evict=on_evict, **SMALL)
    with torch.no_grad():
        model(prompt(500)["input_ids"], past_key_values=cache, use_cache=True)
    assert alive == [[], [], []]


@pytest.mark.parametrize("chunk", [None, 16])
def test_peak_bytes_count_the_prompt_under_way(chunk):
    model = tiny()
    cache = BoundedCache(model, prefill_chunk=chunk, **SMALL)
    with torch.no_grad():
        model(prompt(2000)["input_ids"], past_key_values=cache, use_cache=True)
    per_token = 2 * 2 * 8 * 4
    slabs, prompt_bytes = 3 * 40 * per_token, 2000 * per_token
    assert cache.stats.kv_bytes == slabs
    assert slabs + prompt_bytes <= cache.stats.peak_kv_bytes <= slabs + prompt_bytes + 2 * (40 + 16) * per_token


def test_peak_bytes_of_a_growing_cache_are_no_more_than_it_ever_held():
    model = tiny()
    cache = BoundedCache(model, "full")
    greedy(model, prompt(200), cache, new_tokens=400)
    assert cache.stats.peak_kv_bytes == cache.stats.kv_bytes == cache.stats.formula_bytes


def test_formula_bytes_after_rows_were_dropped_and_with_mixed_dtypes():
    model = tiny()
    cache = BoundedCache(model, scope="output", budget=24, protect=8)
    greedy(model, prompt(10, 80), cache, new_tokens=20)
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.stats.kv_bytes == cache.stats.formula_bytes
    cache = BoundedCache(model, scope="output", budget=24, protect=8)
    with torch.no_grad():
        model(**prompt(5, 60), past_key_values=cache, use_cache=True)
        cache.batch_select_indices(torch.tensor([0]))
        model(prompt(5)["input_ids"], past_key_values=cache, use_cache=True)
    assert cache.stats.kv_bytes == cache.stats.formula_bytes
    mixed = BoundedCache(model, **SMALL)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(prompt(50)["input_ids"], past_key_values=mixed, use_cache=True)
    assert mixed.stats.kv_bytes == mixed.stats.formula_bytes


@pytest.mark.parametrize("policy", ["beaconkv", "h2o", "random_history", "rpc"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_no_graph_is_kept_where_gradients_are_on(family, policy):
    """Nothing that a cache remembers requires a gradient, whatever the mode the model runs in."""
    model = tiny(family)
    for stagger in (1, 3):
        cache = BoundedCache(model, policy, budget=32, prefix=2, protect=6, stagger=stagger)
        for tokens in [20] + [1] * 30:
            model(torch.ones(1, tokens, dtype=torch.int64), past_key_values=cache, use_cache=True)
        assert cache.stats.evictions > 3
        for stack in cache._stacks:
            for layer in stack.counted:
                held = [v for owner in (layer.slab, layer.state) if owner is not None for v in vars(owner).values()]
                assert not any(isinstance(v, torch.Tensor) and v.requires_grad for v in held)


@pytest.mark.parametrize("lengths", [(20, 20), (5, 20)], ids=["equal rows", "ragged rows"])
@pytest.mark.parametrize("policy", ["beaconkv", "h2o", "streaming_llm"])
def test_steps_in_another_dtype_than_the_prompt(policy, lengths):
    """A prompt in float32, steps under autocast, and a prompt again: entries keep the dtype of the first ones."""
    model, inputs = tiny("qwen3"), prompt(*lengths)
    protect = "half" if policy == "h2o" else 8
    cache = BoundedCache(model, policy, budget=40, protect=protect)
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
        ids, position = inputs["input_ids"][:, -1:], torch.tensor(lengths)[:, None]
        for step in range(60):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids, position_ids=position + step, past_key_values=cache).logits
            ids = logits[:, -1:].argmax(-1).clamp(min=1)
        more = prompt(50, 50, seed=3)["input_ids"]
        out = model(more, position_ids=position + 60 + torch.arange(50), past_key_values=cache)
    assert out.logits.isfinite().all()
    assert {host.keys.dtype for host in cache._bounded} == {torch.float32}
    assert cache.stats.evictions > 4
    cache.check_integrity()


def test_layers_without_rope_do_not_keep_the_others_apart():
    """Layers that rotate take decode steps together, and those that do not; known before anything is stored."""
    model, cache = tiny("smollm3"), BoundedCache(tiny("smollm3"), budget=40, protect=8)
    expected = greedy(model, prompt(9, 30), cache)
    assert [[layer.index for layer in stack.layers] for stack in cache._stacks] == [[0, 2], [1]]
    assert all(stack.is_stacked for stack in cache._stacks)
    again = BoundedCache(model, budget=40, protect=8)
    assert torch.equal(greedy(model, prompt(9, 30), again), expected)
    for one in (again, copy_module.deepcopy(again)):
        one.reset()
        assert torch.equal(greedy(model, prompt(9, 30), one), expected)
        one.check_integrity()


def test_cos_and_sin_are_known_by_what_they_are_and_not_by_where_they_lie():
    """Layers whose tables are copies in other memory stay apart, and keep what they keep together."""
    model = copy_module.deepcopy(tiny("qwen3"))

    def own_tables(module, args, kwargs):
        return args, {**kwargs, "position_embeddings": tuple(t.clone() for t in kwargs["position_embeddings"])}

    cache = BoundedCache(model, budget=40, protect=8)
    for layer in model.model.layers[1:]:
        layer.self_attn.register_forward_pre_hook(own_tables, with_kwargs=True, prepend=True)
    got = greedy(model, prompt(9, 30), cache)
    assert not any(stack.is_stacked for stack in cache._stacks)
    plain = tiny("qwen3")
    assert torch.equal(got, greedy(plain, prompt(9, 30), BoundedCache(plain, budget=40, protect=8)))
