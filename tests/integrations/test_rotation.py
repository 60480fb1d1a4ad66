"""The rotation of queries: recognised by trying each module, or the model is refused by name."""

import copy
import sys

import pytest
import torch
import transformers
from transformers import DynamicCache

from beaconkv import BoundedCache, ops
from tests.tiny import _COMMON, FAMILIES, FURTHER, greedy, prompt, tiny


def attention_of(model):
    return [layer.self_attn for layer in model.model.layers]


def changed(model, forward):
    """A copy whose attention modules are of a class with another forward, derived outside of the model's file."""
    model = copy.deepcopy(model)
    for module in attention_of(model):
        kind = type(module)
        vars(module).pop("forward", None)  # transformers 4.x leaves one there after output_attentions=True
        module.__class__ = type(f"Other{kind.__name__}", (kind,), {"forward": forward(kind)})
    return model


def with_tables(change):
    def forward(kind):
        def run(self, hidden_states, position_embeddings=None, **kwargs):
            return kind.forward(self, hidden_states, position_embeddings=change(*position_embeddings), **kwargs)

        return run

    return forward


def reversed_frequencies(cos, sin):
    half = cos.shape[-1] // 2
    order = torch.cat([torch.arange(half).flip(0), torch.arange(half).flip(0) + half])
    return cos[..., order], sin[..., order]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_reordered_frequencies(kernel):
    model = changed(tiny("llama", kernel), with_tables(reversed_frequencies))
    with pytest.raises(ValueError, match=r"OtherLlamaAttention \(layer 0\): its query before RoPE cannot be recovered"):
        greedy(model, prompt(20), BoundedCache(model, budget=64))


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_class_of_ones_own_with_the_models_rotation(kernel):
    """Scaled tables are the model's own business: an attention factor. The class is not of the model's file."""
    for change in (lambda cos, sin: (cos, sin), lambda cos, sin: (1.25 * cos, 1.25 * sin)):
        model = changed(tiny("llama", kernel), with_tables(change))
        expected = greedy(model, prompt(9, 20))
        assert torch.equal(greedy(model, prompt(9, 20), BoundedCache(model, budget=400)), expected)


def test_queries_scaled_by_their_position():
    """As of Ministral 3: before the rotation or after it, from position_ids."""

    def forward(kind):
        file = sys.modules[kind.__module__]

        def run(self, hidden_states, position_embeddings=None, position_ids=None, **kwargs):
            cos, sin = position_embeddings
            scale = 1 + 0.1 * (1 + position_ids // 16384).log()[..., None]
            own = file.apply_rotary_pos_emb
            file.apply_rotary_pos_emb = lambda q, k, cos, sin: (own(q, k, cos, sin)[0] * scale, own(q, k, cos, sin)[1])
            try:
                return kind.forward(self, hidden_states, position_embeddings=(cos, sin), **kwargs)
            finally:
                file.apply_rotary_pos_emb = own

        return run

    model = changed(tiny("llama"), forward)
    with pytest.raises(ValueError, match="changes queries by their position beyond the rotation"):
        greedy(model, prompt(20), BoundedCache(model, budget=64))


@pytest.mark.skipif(not hasattr(transformers, "Ministral3ForCausalLM"), reason="not in this release of transformers")
def test_ministral3():
    torch.manual_seed(1)
    config = transformers.Ministral3Config(**{**_COMMON, "head_dim": 8, "sliding_window": None})
    model = transformers.Ministral3ForCausalLM(config).eval()
    with pytest.raises(ValueError, match=r"Ministral3Attention \(layer 0\) changes queries by their position"):
        greedy(model, prompt(20), BoundedCache(model, budget=64))


def test_queries_that_are_zero():
    model = copy.deepcopy(tiny("llama"))
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.zero_()
    with pytest.raises(ValueError, match=r"\(layer 1\) cannot be bounded: its queries are zero"):
        greedy(model, prompt(20), BoundedCache(model, budget=64))


LAYOUT = {"glm4": "interleaved_of_halves", "ernie": "interleaved_of_halves", "helium": "interleaved_of_halves"}
LAYOUT |= {"gpt-oss": "half_of_once", "cohere": "interleaved", "nanochat": "half_backwards"}


@pytest.mark.parametrize("family", [*FAMILIES, *FURTHER])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_family_has_a_known_layout(family, dtype):
    """Which the fused and Triton operations know; no family runs through a function of its model's file."""
    if dtype is torch.bfloat16 and family in ("qwen3-next", "qwen3.5", "olmo-hybrid"):
        return  # slow without the kernels these families are made for
    model = tiny(family, dtype=dtype)
    with BoundedCache(model, budget=64) as cache, torch.no_grad():
        model(prompt(5)["input_ids"], past_key_values=cache)
        found = set(cache.attachment.rotary.values())
    expected = {ops.LAYOUTS[LAYOUT.get(family, "half")].apply}
    assert found == expected | ({ops.apply_identity} if family == "smollm3" else set())


@pytest.mark.parametrize("family", FURTHER)
def test_further_families(family):
    """Tokens of the plain cache where nothing is evicted; rows as alone where much is, linear layers included."""
    model, lengths = tiny(family), (9, 30, 21)
    inputs = prompt(*lengths)
    expected = greedy(model, inputs, DynamicCache(config=model.config), new_tokens=30)
    assert torch.equal(greedy(model, inputs, BoundedCache(model, budget=400), new_tokens=30), expected)
    cache = BoundedCache(model, budget=40, protect=8)
    both = greedy(model, inputs, cache)
    assert cache.stats.evictions > 3
    cache.check_integrity()
    for row, length in enumerate(lengths):
        alone = {"input_ids": inputs["input_ids"][row : row + 1, 30 - length :]}
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        assert torch.equal(greedy(model, alone, BoundedCache(model, budget=40, protect=8))[0], both[row])


def test_linear_layers_are_reset():
    """And beam search, rows that leave and rows that are repeated move their states with the rest."""
    for family in {"qwen3-next", "qwen3.5"} & set(FURTHER):
        model = tiny(family)
        cache = BoundedCache(model, budget=40, protect=8)
        expected = greedy(model, prompt(20), cache)
        cache.reset()
        assert torch.equal(greedy(model, prompt(20), cache), expected)
        plain = greedy(model, prompt(20), num_beams=3, new_tokens=10)
        assert torch.equal(
            greedy(model, prompt(20), BoundedCache(model, budget=400), num_beams=3, new_tokens=10), plain
        )
        inputs = prompt(20, 20)
        cache = BoundedCache(model, budget=40, protect=8)
        with torch.no_grad():
            model(**inputs, past_key_values=cache)
            cache.batch_select_indices(torch.tensor([1]))
            cache.batch_repeat_interleave(2)
            logits = model(inputs["input_ids"][[0, 0], :1], past_key_values=cache).logits
            alone = BoundedCache(model, budget=40, protect=8)
            model(inputs["input_ids"][1:], past_key_values=alone)
            expected = model(inputs["input_ids"][:1, :1], past_key_values=alone).logits
        torch.testing.assert_close(logits, expected.expand(2, -1, -1), atol=1e-4, rtol=1e-4)
