"""The same engine on a GPU, where there is one: FlashAttention in place of the CPU's kernels."""

import pytest
import torch

from beaconkv.models import load

from .engine import AGREE, ROUNDED, asked, first_of, needs_vllm, problems, rounded_agreement, run_engine

pytestmark = [needs_vllm, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
ENGINE = dict(dtype="bfloat16", attention_backend="FLASH_ATTN", block_size=16, gpu_memory_utilization=0.3)


@pytest.mark.parametrize("eager", [True, False])
def test_without_settings_it_is_vllm(tmp_path, eager):
    job = [asked(problems(4), [420] * 4)]
    stock = run_engine(tmp_path, None, job, enforce_eager=eager, **ENGINE)
    ours = run_engine(tmp_path, {}, job, enforce_eager=eager, **ENGINE)
    assert ours["rounds"] == stock["rounds"]


def test_a_budget_that_is_never_reached_changes_nothing(tmp_path):
    job = [asked(problems(4), [420] * 4)]
    stock = run_engine(tmp_path, None, job, **ENGINE)
    ours = run_engine(tmp_path, dict(budget=1024), job, **ENGINE)
    assert ours["rounds"] == stock["rounds"]
    assert ours["stats"][0]["evictions"] == 0


@pytest.mark.parametrize("policy", ROUNDED)
@pytest.mark.parametrize("eager", [True, False])
def test_kept_positions_are_those_in_transformers(tmp_path, policy, eager):
    """Per layer and head, on the same texts: a layout that is misread keeps others (shown on the CPU)."""
    model = load("reasoner", "bfloat16", "cuda").model
    share, result = rounded_agreement(tmp_path, model, policy, **ENGINE | dict(enforce_eager=eager))
    assert share > AGREE
    assert result["stats"][0]["evictions"] > 10


def test_graphs_write_what_eager_steps_write(tmp_path):
    """One request at a time: kernels may round differently for other batches, in bfloat16 visibly."""
    job = [asked([prompt], [300]) for prompt in problems(3)]
    eager = run_engine(tmp_path, dict(budget=128), job, **ENGINE)
    graphs = run_engine(tmp_path, dict(budget=128), job, enforce_eager=False, **ENGINE)
    assert graphs["stats"][0]["evictions"] == eager["stats"][0]["evictions"] > 30
    agree = [
        sum(a == b for a, b in zip(one, other, strict=True)) / len(one)
        for one, other in zip(map(first_of, eager["rounds"]), map(first_of, graphs["rounds"]), strict=True)
        for one, other in zip(one, other, strict=True)
    ]
    assert sum(agree) / len(agree) > 0.8


def test_blocks_come_back(tmp_path):
    prompts, lengths = [p[:30] for p in problems(8)], [300, 500, 420, 350, 600, 250, 510, 333]
    result = run_engine(
        tmp_path, dict(budget=128), [asked(prompts, lengths)], **ENGINE, num_gpu_blocks_override=31, max_model_len=4096
    )
    assert result["used"] <= 30
    assert result["blocks_free"] == result["blocks_at_all"]
    assert result["holdings"] == 0
