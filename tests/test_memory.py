from dataclasses import dataclass, replace

import pytest
import torch
from transformers import Gemma3TextConfig, Qwen3Config

from beaconkv import BoundedCache, EvictionPolicy, make_policy, policies
from beaconkv.memory import GIB, ModelShape, plan_memory
from beaconkv.policies import LayerState
from tests.tiny import greedy, prompt, tiny

QWEN3_4B = ModelShape(
    full_layers=36, sliding_layers=0, window=0, num_heads=32, kv_heads=8, head_dim=128, weight_count=4_022_468_096
)


def test_the_papers_motivating_figure():
    """Qwen3-4B, 32K tokens, batch 16: about 77 GB of keys and values."""
    plan = plan_memory(QWEN3_4B, make_policy("beaconkv"), 2048, length=32768)
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


@pytest.mark.parametrize("policy", [name for name, cls in policies().items() if cls.evicts])
def test_the_plan_is_what_a_cache_measures(policy):
    """Texts below and above the budget, prompts shorter and longer than it, histories that have grown or have not."""
    model, budget = tiny(), 64
    shape = ModelShape.of_config(model.config)
    for length, text in ((12, 30), (20, 110), (100, 130), (30, 330), (330, 360)):
        cache = BoundedCache(model, policy, budget)
        greedy(model, prompt(length), cache, new_tokens=text - length + 1)
        assert cache.stats.tokens_seen == text
        plan = plan_memory(shape, make_policy(policy), budget, length=text, dtype=torch.float32)
        assert plan.state_row == cache.stats.state_bytes, (length, text)
        assert plan.bounded_row == cache.stats.kv_bytes + cache.stats.state_bytes


@pytest.mark.parametrize("policy", ["beaconkv", "naive_fps", "h2o"])
def test_a_model_that_turns_half_of_its_dimensions(policy):
    """gpt-oss keeps half-size cos and sin, the plan assumes whole ones; sliding layers are no part of it."""
    model, budget = tiny("gpt-oss"), 64
    cache = BoundedCache(model, policy, budget)
    greedy(model, prompt(20), cache, new_tokens=91)
    plan = plan_memory(ModelShape.of_config(model.config), make_policy(policy), budget, length=110, dtype=torch.float32)
    assert plan.bytes_per_token * budget == cache.stats.kv_bytes
    n_recent = getattr(make_policy(policy), "n_recent", 0)
    layers = plan.bytes_per_token // (2 * 4 * model.config.num_key_value_heads * model.config.head_dim)
    slack = 2 * layers * n_recent * model.config.head_dim * 4
    assert cache.stats.state_bytes <= plan.state_row <= cache.stats.state_bytes + slack


def test_rows_fill_the_memory_and_no_more():
    plan = plan_memory(QWEN3_4B, make_policy("beaconkv"), 2048, length=32768, memory_gib=80, utilization=0.9)
    room = int(80 * GIB * 0.9) - plan.weight_bytes
    for rows, each in ((plan.batch_full, plan.full_row), (plan.batch_bounded, plan.bounded_row)):
        assert rows * each <= room < (rows + 1) * each
    assert plan.batch_bounded > 10 * plan.batch_full


MANY_KV_HEADS = replace(QWEN3_4B, kv_heads=32)


@pytest.mark.parametrize(
    ("shape", "policy", "budget"),
    [
        (QWEN3_4B, "beaconkv", 2048),
        (QWEN3_4B, "random_history", 2048),
        (QWEN3_4B, "h2o", 2048),
        (MANY_KV_HEADS, "naive_fps", 512),
    ],
)
def test_break_even_length(shape, policy, budget):
    policy = make_policy(policy)
    at = plan_memory(shape, policy, budget).break_even_length

    def saves(length):
        plan = plan_memory(shape, policy, budget, length=length)
        return plan.full_row > plan.bounded_row

    assert all(saves(length) for length in (at, at + 1, at + 255, at + 256, at + 257, at + 1000, 4 * at))
    assert not any(saves(length) for length in (at - 1, at - 256, budget))


def test_a_state_that_grows_as_fast_as_the_cache_never_breaks_even():
    """Qwen3-4B: 32 query heads remember all queries, 8 KV heads would hold keys and values."""
    plan = plan_memory(QWEN3_4B, make_policy("kmeans_centroid"), 2048)
    assert plan.state_per_token == 36 * 32 * 128 * 2 > plan.bytes_per_token
    assert plan.state_row > 9 * GIB
    assert plan.bounded_row > plan.full_row
    assert plan.break_even_length is None
    assert plan.to_dict()["break_even_length"] == "never"
    assert plan.batch_bounded < plan.batch_full
    fixed = plan_memory(QWEN3_4B, make_policy("beaconkv"), 2048)
    assert fixed.state_per_token == 0
    assert fixed.state_row == plan_memory(QWEN3_4B, make_policy("beaconkv"), 2048, length=131072).state_row


@dataclass(frozen=True)
class Diary(EvictionPolicy):
    """Of a user: remembers four bytes of each token, and says so in ``nbytes`` alone."""

    def new_state(self, batch):
        class Pages(LayerState):
            tokens = 0

            def observe(self, queries, rope, until_full, rows, view):
                self.tokens += queries.shape[2]

            @property
            def nbytes(self):
                return 4 * self.tokens

        return Pages()

    def score(self, view, state):
        return view.positions.float()


def test_the_state_of_a_policy_of_ones_own_is_measured_too():
    at = {length: plan_memory(QWEN3_4B, Diary(), 2048, length=length) for length in (1000, 30000)}
    assert at[30000].state_row - at[1000].state_row == 36 * 4 * 29000
    assert at[1000].state_per_token == 36 * 4


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
        plan_memory(QWEN3_4B, make_policy("beaconkv"), 2048, **settings)
    with pytest.raises(ValueError, match="'full' never evicts"):
        plan_memory(QWEN3_4B, make_policy("full"), 2048)
