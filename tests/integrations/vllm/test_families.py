"""Families of models, tiny and random: other rotations, layers that are not bounded, heads that are not alike."""

import pytest
import torch

from tests import tiny

from .engine import asked, first_of, needs_vllm, run_engine, transformers_tokens

pytestmark = needs_vllm
SHAPE = dict(head_dim=32, hidden_size=128, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        ("llama3-rope", "beaconkv"),
        ("qwen2", "rkv"),
        ("qwen3-yarn", "beaconkv"),
        ("mistral", "snapkv"),
        ("phi3", "beaconkv"),
        ("gemma3", "beaconkv"),
        ("gpt-oss", "rpc"),
        ("glm4", "beaconkv"),
        ("qwen3-moe", "tova"),
    ],
)
def test_tokens_equal_those_in_transformers(tmp_path, family, policy):
    model = tiny.tiny(family, **SHAPE)
    model.save_pretrained(tmp_path / "model")
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(1, tiny.VOCAB, (n,), generator=generator).tolist() for n in (30, 150)]
    lengths, settings = [160, 100], dict(policy=policy, budget=96)
    result = run_engine(tmp_path, settings, [asked(prompts, lengths)], model=str(tmp_path / "model"), max_model_len=256)
    tokens, events = transformers_tokens(model, prompts, lengths, **settings)
    assert first_of(result["rounds"][0]) == tokens
    assert len(set(tokens[0])) > 3
    assert {layer for _, layer, _, _ in result["events"]} == {layer for _, layer, _, _ in events}
    assert result["blocks_free"] == result["blocks_at_all"]


def test_a_model_that_vllm_runs_by_transformers_is_refused(tmp_path):
    tiny.tiny("smollm3", **SHAPE).save_pretrained(tmp_path / "model")
    refusal = run_engine(tmp_path, dict(budget=96), [], fails=True, model=str(tmp_path / "model"))
    assert "SmolLM3Attention (model.layers.0.self_attn.attn) does not take positions and hidden_states" in refusal


def test_positions_without_a_rotation_are_refused(tmp_path):
    tiny.tiny("qwen3-yarn", **SHAPE).save_pretrained(tmp_path / "model")
    refusal = run_engine(tmp_path, dict(budget=96), [], fails=True, model=str(tmp_path / "model"))
    assert "has a rotation for 256 positions: choose a --max-model-len of no more" in refusal


def test_layers_of_several_kinds_stay_apart(tmp_path):
    tiny.tiny("gemma3", **SHAPE).save_pretrained(tmp_path / "model")
    engine = dict(model=str(tmp_path / "model"), disable_hybrid_kv_cache_manager=True)
    refusal = run_engine(tmp_path, dict(budget=96), [], fails=True, **engine)
    assert "start vLLM without --disable-hybrid-kv-cache-manager" in refusal
