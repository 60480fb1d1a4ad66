"""What cannot work is refused early, by name, with the choices."""

import copy
import gc
import inspect

import pytest
import torch
import transformers

import beaconkv
from beaconkv import BoundedCache
from beaconkv.integrations.transformers import model_checks
from tests.tiny import _COMMON, IS_NEW, greedy, prompt, tiny


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(), "policy 'beaconkv' needs a budget"),
        (dict(policy="full", budget=64), "policy 'full' never evicts: budget must be None, got 64"),
        (dict(policy="snap", budget=64), "unknown policy 'snap'; choose from beaconkv"),
        (dict(policy=3, budget=64), "policy must be a name or an EvictionPolicy, got 3"),
        (dict(budget=1), "budget=1, budget_min=0 leave no room"),
        (dict(budget=36), "Choose a budget of at least 42"),
        (dict(budget=64, prefix=30, protect=30), "leave no room"),
        (dict(budget=64, scope="prompt"), "scope must be one of total, output"),
    ],
)
def test_settings(settings, message):
    model = tiny()
    gc.collect()  # caches that earlier tests left in tracebacks
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=message):
        BoundedCache(model, **settings)
    gc.collect()
    assert model.config._attn_implementation == before == "sdpa"


def test_prompt_as_prefix_that_leaves_no_room():
    model = tiny()
    cache = BoundedCache(model, budget=64, prefix="prompt", protect=8)
    with pytest.raises(ValueError, match="prompt of 60 tokens as prefix"):
        greedy(model, prompt(20, 60), cache)


def test_crop_and_assisted_decoding():
    model = tiny()
    with pytest.raises(RuntimeError, match="cannot be cropped"):
        BoundedCache(model, budget=64).crop(-1)
    for extra in (dict(assistant_model=model), dict(prompt_lookup_num_tokens=3)):
        with pytest.raises((RuntimeError, ValueError), match="cropped|croppable|assist|rollback|roll back|crop"):
            greedy(model, prompt(20), BoundedCache(model, budget=64), **extra)


def test_cache_implementation_together_with_ours():
    model = tiny()
    with pytest.raises(ValueError, match="cache_implementation"):
        greedy(model, prompt(20), BoundedCache(model, budget=64), cache_implementation="static")


def test_a_cache_of_another_model():
    one, other = tiny("llama"), tiny("qwen3")
    cache = BoundedCache(one, budget=64)
    keep = BoundedCache(other, budget=64)
    with pytest.raises(ValueError, match="made for another model"):
        greedy(other, prompt(20), cache)
    del keep


def test_another_batch_on_a_used_cache():
    model = tiny()
    cache = BoundedCache(model, budget=64)
    greedy(model, prompt(20), cache)
    with pytest.raises(ValueError, match="use a new cache for another batch"), torch.no_grad():
        model(torch.ones(3, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    cache = BoundedCache(model, budget=64)
    model(prompt(20)["input_ids"], past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="use a new cache for another batch"), torch.no_grad():
        model(prompt(5, 5, 5)["input_ids"], past_key_values=cache, use_cache=True)


def test_a_mask_of_four_dimensions():
    model, ids = tiny(), prompt(6)["input_ids"]
    mask = torch.zeros(1, 1, 6, 6)
    with pytest.raises(ValueError, match="takes a 2-D attention mask"):
        model(ids, attention_mask=mask, past_key_values=BoundedCache(model, budget=64), use_cache=True)


def test_a_causal_mask_that_is_not_plain():
    """Image blocks or packed sequences need another mask than the one a bounded layer builds."""
    from transformers.masking_utils import create_causal_mask

    model = tiny()
    cache = BoundedCache(model, budget=64)
    embeds, mask = torch.zeros(1, 4, 48), torch.ones(1, 4, dtype=torch.int64)
    arguments = dict(config=model.config, attention_mask=mask, or_mask_function=lambda b, h, q, k: k < 2)
    arguments[model_checks.cache_argument()] = cache
    if model_checks.cache_argument() == "cache":
        arguments["inputs_embeds"] = embeds
    else:
        arguments.update(input_embeds=embeds, cache_position=torch.arange(4))

    def call_with_that_mask(module, args, kwargs):
        return args, {**kwargs, "attention_mask": mask_of_blocks}

    with cache.attachment.wrapped():
        mask_of_blocks = create_causal_mask(**arguments)
    first = model.model.layers[0].self_attn
    handle = first.register_forward_pre_hook(call_with_that_mask, with_kwargs=True)
    try:
        with pytest.raises(ValueError, match="changes the causal mask"):
            model(prompt(4)["input_ids"], past_key_values=cache)
    finally:
        handle.remove()


def test_rotary_embeddings_of_another_form():
    model = small("Llama", head_dim=8)
    cache = BoundedCache(model, budget=64)
    attention = model.model.layers[0].self_attn
    arguments = {model_checks.cache_argument(): cache, "attention_mask": None}
    with cache.attachment.wrapped(), pytest.raises(ValueError, match="no pair of cos and sin"):
        attention(torch.zeros(1, 1, 48), position_embeddings=torch.zeros(1, 1, 4), **arguments)
    with pytest.raises(RuntimeError, match="but not by the model that the cache was made for"):
        attention(torch.zeros(1, 1, 48), position_embeddings=(torch.zeros(1, 1, 4),) * 2, **arguments)


def test_flex_attention():
    model = tiny()
    model.config._attn_implementation = "flex_attention"
    try:
        with pytest.raises(ValueError, match="'flex_attention' cannot be bounded; choose from sdpa, eager"):
            BoundedCache(model, budget=64)
        assert model.config._attn_implementation == "flex_attention"
    finally:
        model.config._attn_implementation = "sdpa"


def small(name, **extra):
    config = getattr(transformers, f"{name}Config")(**{**_COMMON, **extra})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def test_multi_head_latent_attention():
    model = small(
        "DeepseekV3",
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        num_key_value_heads=6,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    with pytest.raises(ValueError, match=r"multi-head latent attention \(MLA\)"):
        BoundedCache(model, budget=64)


def test_a_model_of_sliding_layers_only():
    with pytest.raises(ValueError, match="no full-attention layer to bound, only DynamicSlidingWindowLayer"):
        BoundedCache(small("Mistral", head_dim=8, sliding_window=16), budget=64)


def test_models_without_rope_or_cache():
    with pytest.raises(ValueError, match="GPT2LMHeadModel"):
        BoundedCache(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2)), budget=64)
    with pytest.raises(ValueError, match="Linear"):
        BoundedCache(torch.nn.Linear(2, 2), budget=64)


def test_a_module_whose_query_cannot_be_turned_back(monkeypatch):
    """A family that changes queries after RoPE is noticed at the first forward pass, before anything is stored."""
    from transformers.models.llama import modeling_llama

    model = small("Llama", head_dim=8)
    own = modeling_llama.apply_rotary_pos_emb
    q_norm = torch.nn.functional.normalize

    def strange(q, k, cos, sin, *args, **kwargs):
        q, k = own(q, k, cos, sin, *args, **kwargs)
        return (q_norm(q + 1.0, dim=-1), k) if k.shape[1] else (q, k)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", strange)
    model.model.embed_tokens.weight.data[0] = 0.0  # the check must not be misled by padding
    for inputs in (prompt(20), prompt(5, 20)):
        with pytest.raises(ValueError, match="query before RoPE cannot be recovered"):
            greedy(model, inputs, BoundedCache(model, budget=64))


def test_unsupported_release(monkeypatch):
    monkeypatch.setattr(model_checks.transformers, "__version__", "4.56.2")
    with pytest.raises(ImportError, match=r"supports transformers >=4.57,<6; found 4.56.2"):
        BoundedCache(tiny(), budget=64)


def test_positions_of_a_layer_that_is_not_bounded():
    cache = BoundedCache(tiny("gemma3"), budget=64)
    with pytest.raises(ValueError, match="layer 0 is not bounded; bounded layers: 5"):
        cache.positions(0)
    assert beaconkv.BoundedCache is BoundedCache


def test_a_module_that_attends_twice(monkeypatch):
    """Some families call their attention function twice on one pair of keys and values."""
    from transformers.models.llama import modeling_llama

    model = small("Llama", head_dim=8)
    forward = modeling_llama.LlamaAttention.forward

    def twice(self, *args, **kwargs):
        own = kwargs.get("beaconkv_call")
        if own is not None and hasattr(own, "host"):
            query = torch.zeros(1, 6, 20, 8)
            forward(self, *args, **kwargs)
            own.attend(self, query, query[:, :2], query[:, :2], None, "sdpa", scaling=1.0)
        return forward(self, *args, **kwargs)

    cache = BoundedCache(model, budget=64)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", twice)
    with pytest.raises(ValueError, match="LlamaAttention .layer 0. attends twice to one pair of keys and values"):
        greedy(model, prompt(20), cache)


def test_an_attention_mask_that_is_too_short():
    model, ids = tiny(), prompt(20)["input_ids"]
    cache = BoundedCache(model, budget=64)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
        with pytest.raises(ValueError, match="mask has 5 columns for 25 tokens"):
            model(ids[:, :5], attention_mask=torch.ones(1, 5), past_key_values=cache, use_cache=True)


def test_phi3_with_longrope_is_warned_of():
    """Its own generate() drops any cache when the text passes the original length."""
    factors = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    extra = dict(max_position_embeddings=256, original_max_position_embeddings=64, rope_scaling=factors)
    model = small("Phi3", sliding_window=None, **extra)
    with pytest.warns(UserWarning, match="drops every cache, this one too, when the text passes 64 tokens"):
        BoundedCache(model, budget=60, protect=8)


def test_out_of_memory_in_the_first_pass_is_no_verdict_on_the_model(monkeypatch):
    model = small("Llama", head_dim=8)
    projection = model.model.layers[0].self_attn.q_proj

    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("no room")

    cache = BoundedCache(model, budget=64)
    with monkeypatch.context() as patch:
        patch.setattr(projection, "forward", fail)
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            greedy(model, prompt(20), cache)
    greedy(model, prompt(20), cache)


def test_a_cache_whose_model_is_gone():
    model = small("Llama", head_dim=8)
    cache = BoundedCache(model, budget=64)
    del model
    gc.collect()
    for use in (cache.reset, lambda: copy.deepcopy(cache)):
        with pytest.raises(RuntimeError, match="the model of this BoundedCache was deleted"):
            use()


REASONS = [
    ("T5ForConditionalGeneration", "is an encoder-decoder"),
    ("BartForConditionalGeneration", "is an encoder-decoder"),
    ("GPT2LMHeadModel", "has no attention module that takes cos and sin"),
    ("BloomForCausalLM", "has no attention module that takes cos and sin"),
    ("FalconForCausalLM", "has no attention module that takes cos and sin"),
    ("MambaForCausalLM", "has no full-attention layer to bound, only LinearAttentionLayer"),
]


@pytest.mark.parametrize(("name", "reason"), REASONS, ids=[name for name, _ in REASONS])
def test_every_refusal_names_its_true_reason(name, reason):
    if name == "MambaForCausalLM" and not IS_NEW:
        return  # it has a cache of its own there
    kind = getattr(transformers, name)
    sizes = {
        **_COMMON,
        "d_model": 48,
        "n_head": 6,
        "n_layer": 2,
        "num_layers": 2,
        "num_heads": 6,
        "d_kv": 8,
        "d_ff": 64,
    }
    known = inspect.signature(kind.config_class.__init__).parameters
    known = set(known) | set(getattr(kind.config_class, "__dataclass_fields__", {}))
    with torch.device("meta"):
        model = kind(kind.config_class(**{key: value for key, value in sizes.items() if key in known}))
    with pytest.raises(ValueError, match=f"{name}.* {reason}") as refusal:
        BoundedCache(model, budget=64)
    assert "AttentionInterface" not in str(refusal.value)
