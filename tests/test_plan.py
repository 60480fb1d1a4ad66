import pytest
import torch
from transformers import Gemma3TextConfig, Qwen3Config

from beaconkv import BoundedCache, make_policy
from beaconkv.plan import GIB, ModelShape, make_plan
from tests.tiny import greedy, prompt, tiny

QWEN3_4B = ModelShape(
    full_layers=36, sliding_layers=0, window=0, num_heads=32, kv_heads=8, head_dim=128, weight_count=4_022_468_096
)


def test_the_papers_motivating_figure():
    """Qwen3-4B, 32K tokens, batch 16: about 77 GB of keys and values."""
    plan = make_plan(QWEN3_4B, make_policy("beaconkv"), 2048, length=32768)
    assert plan.bytes_per_token == 147_456
    assert round(16 * plan.full_row / 1e9) == 77
    assert plan.full_row == 147_456 * 32768


def test_config_is_read():
    config = Qwen3Config(
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    assert ModelShape.of_config(config) == QWEN3_4B


def test_sliding_layers_are_counted_apart():
    shape = ModelShape.of_config(tiny("gemma3").config)
    assert (shape.full_layers, shape.sliding_layers, shape.window) == (1, 5, 16)
    with pytest.raises(ValueError, match="no full-attention layer, only sliding_attention"):
        ModelShape.of_config(
            Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention"] * 2, vocab_size=50)
        )


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt-oss"])
@pytest.mark.parametrize("policy", ["beaconkv", "recent", "streaming_llm"])
def test_the_plan_is_what_a_cache_measures(family, policy):
    """bounded_row without the sliding layers equals the bytes of a real cache at that budget."""
    model = tiny(family)
    cache = BoundedCache(model, policy, 64)
    greedy(model, prompt(20), cache, new_tokens=90)
    plan = make_plan(ModelShape.of_config(model.config), make_policy(policy), 64, length=110, dtype=torch.float32)
    assert plan.bytes_per_token * 64 == cache.stats.kv_bytes
    # gpt-oss keeps half-size cos and sin, the plan assumes whole ones
    n_recent = getattr(make_policy(policy), "n_recent", 0)
    slack = 0 if family != "gpt-oss" else 2 * n_recent * model.config.head_dim * 4
    assert cache.stats.state_bytes <= plan.state_row <= cache.stats.state_bytes + slack


def test_rows_fill_the_memory_and_no_more():
    plan = make_plan(QWEN3_4B, make_policy("beaconkv"), 2048, length=32768, memory_gib=80, utilization=0.9)
    room = int(80 * GIB * 0.9) - plan.weight_bytes
    for rows, each in ((plan.batch_full, plan.full_row), (plan.batch_bounded, plan.bounded_row)):
        assert rows * each <= room < (rows + 1) * each
    assert plan.batch_bounded > 10 * plan.batch_full


def test_break_even_length():
    plan = make_plan(QWEN3_4B, make_policy("beaconkv"), 2048)
    longer = make_plan(QWEN3_4B, make_policy("beaconkv"), 2048, length=plan.break_even_length)
    shorter = make_plan(QWEN3_4B, make_policy("beaconkv"), 2048, length=plan.break_even_length - 1)
    assert longer.full_row > longer.bounded_row
    assert shorter.full_row <= shorter.bounded_row


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(length=0), "length must be positive, got 0"),
        (dict(memory_gib=-1), "memory_gib must be positive"),
        (dict(utilization=1.5), r"utilization must be in \(0, 1\], got 1.5"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        make_plan(QWEN3_4B, make_policy("beaconkv"), 2048, **settings)
    with pytest.raises(ValueError, match="'full' never evicts"):
        make_plan(QWEN3_4B, make_policy("full"), 2048)
