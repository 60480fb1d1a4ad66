"""Engines of vLLM, with the real model of this package: what is written, what is kept, which blocks are held."""

import subprocess
import sys

import pytest

from beaconkv.models import load

from .engine import (
    AGREE,
    ROUNDED,
    asked,
    due_events,
    first_of,
    needs_vllm,
    problems,
    reasoner,
    rounded_agreement,
    run_engine,
    transformers_tokens,
)

pytestmark = needs_vllm


def test_without_settings_it_is_vllm(tmp_path):
    prompts = problems(4)
    job = [asked(prompts, [420] * 4)]
    stock = run_engine(tmp_path, None, job)
    ours = run_engine(tmp_path, {}, job)
    assert ours["rounds"] == stock["rounds"]
    assert ours["blocks"] == stock["blocks"]
    assert len({tuple(tokens) for tokens in first_of(stock["rounds"][0])}) == 4


@pytest.mark.parametrize(
    "policy", ["beaconkv", "beaconkv:plus", "beaconkv:soft", "rpc", "snapkv", "rkv", "streaming_llm", "naive_fps"]
)
def test_tokens_and_entries_equal_those_in_transformers(tmp_path, policy):
    """Greedy, fp32: prompts below and above the budget and vLLM's step, in one batch, against each alone."""
    some = problems(4)
    prompts = [some[0], some[1][:40], (some[2] + some[3]) * 2, some[3][:1]]
    lengths, settings = [300, 430, 200, 150], dict(policy=policy, budget=144)
    result = run_engine(tmp_path, settings, [asked(prompts, lengths)])
    model = load("reasoner").model
    tokens, events = transformers_tokens(model, prompts, lengths, **settings)
    assert first_of(result["rounds"][0]) == tokens
    assert len(events) > 200
    assert due_events(result["events"], prompts, lengths) == due_events(events, prompts, lengths)
    assert result["blocks_free"] == result["blocks_at_all"]
    assert result["holdings"] == 0


def test_a_pool_in_which_vllm_has_to_refuse(tmp_path):
    """14 blocks for texts of up to 4096 tokens: requests are preempted after they were evicted, and come back right."""
    prompts, lengths = [p[:30] for p in problems(8)], [300, 500, 420, 350, 600, 250, 510, 333]
    prompts[5] = problems(1)[0] * 2
    small = dict(num_gpu_blocks_override=15, max_model_len=4096)
    refusal = run_engine(tmp_path, None, [], fails=True, **small)
    assert "max seq len" in refusal
    settings = dict(budget=128)
    tight = run_engine(tmp_path, settings, [asked(prompts, lengths)], **small)
    assert tight["preempted"] >= 2
    assert tight["used"] <= 14
    assert tight["blocks_free"] == tight["blocks_at_all"] == 14
    assert tight["holdings"] == 0
    assert tight["stats"][0]["evictions"] > sum(lengths) // 16 // 2
    alone = run_engine(tmp_path, settings, [asked([p], [n]) for p, n in zip(prompts, lengths, strict=True)])
    assert alone["preempted"] == 0
    assert alone["blocks"] <= -(-(127 + 127 + 128) // 32)
    assert first_of(tight["rounds"][0]) == [round_[0][0] for round_ in alone["rounds"]]


def test_what_a_long_prompt_took_is_given_back(tmp_path):
    prompt = (problems(4)[0] + problems(4)[1]) * 3
    assert len(prompt) > 900
    result = run_engine(tmp_path, dict(budget=128), [asked([prompt], [300])])
    assert 4 < result["blocks"] <= -(-(127 + 127 + 128) // 32)
    finished = run_engine(tmp_path, dict(budget=128), [asked([prompt[:20]], [600])])
    assert finished["blocks"] == 4


def test_abort_in_the_middle(tmp_path):
    prompts = problems(8)
    rounds = [
        [dict(request, abort_after=30 + 20 * n if n % 2 else 0) for n, request in enumerate(asked(prompts, [300] * 8))],
        asked(prompts[:2], [200] * 2),
    ]
    result = run_engine(tmp_path, dict(budget=96), rounds)
    whole = run_engine(tmp_path, dict(budget=96), [asked(prompts, [300] * 8)])
    for n, (got, all_of_it) in enumerate(zip(first_of(result["rounds"][0]), first_of(whole["rounds"][0]), strict=True)):
        assert got == all_of_it[: len(got)]
        assert (len(got) < 300) == bool(n % 2)
    assert first_of(result["rounds"][1]) == [tokens[:200] for tokens in first_of(whole["rounds"][0])[:2]]
    assert result["blocks_free"] == result["blocks_at_all"]
    assert result["holdings"] == 0
    stats = result["stats"][0]
    assert stats["requests"] <= 2
    assert stats["entries_dropped"] >= stats["evictions"] * 12


def test_sampling_with_a_seed_does_not_depend_on_the_company(tmp_path):
    prompts = [p[:15] for p in problems(4)]  # all in one step: vLLM cannot cut seeded prompts on a CPU
    sampled = asked(prompts, [150] * 4, temperature=0.8, top_p=0.9, seed=5, n=2)
    result = run_engine(tmp_path, dict(budget=96), [sampled, *([request] for request in sampled)])
    together, *alone = result["rounds"]
    assert [round_[0] for round_ in alone] == together
    assert any(samples[0] != samples[1] for samples in together)


def test_compiled_is_eager(tmp_path):
    job = [asked(problems(3), [250] * 3)]
    eager = run_engine(tmp_path, dict(budget=96), job)
    compiled = run_engine(tmp_path, dict(budget=96), job, enforce_eager=False)
    assert compiled["rounds"] == eager["rounds"]


def test_two_workers_write_what_one_writes(tmp_path):
    job = [asked(problems(4), [250] * 4)]
    one = run_engine(tmp_path, dict(budget=96), job)
    workers = dict(tensor_parallel_size=2, distributed_executor_backend="mp")
    two = run_engine(tmp_path, dict(budget=96), job, environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, **workers)
    assert two["rounds"] == one["rounds"]
    assert [stats["evictions"] for stats in two["stats"]] == [one["stats"][0]["evictions"]] * 2


@pytest.mark.parametrize("policy", ROUNDED)
def test_reduced_precision_keeps_what_transformers_keeps(tmp_path, policy):
    """bfloat16 rounds differently in every kernel, so the texts differ; on the same text the positions hardly do."""
    share, result = rounded_agreement(tmp_path, load("reasoner", "bfloat16").model, policy)
    assert share > AGREE
    assert result["stats"][0]["evictions"] > 10


@pytest.mark.parametrize("policy", ROUNDED)
def test_a_layout_that_is_misread_does_not_pass(tmp_path, policy):
    """What the test above, and the one on a GPU, would say of keys and values that are found in the wrong places."""
    share, _ = rounded_agreement(tmp_path, load("reasoner", "bfloat16").model, policy, reader="side_by_side")
    assert share < AGREE - 0.2


def test_a_layout_that_is_misread_is_refused_at_the_start(tmp_path):
    refusal = run_engine(tmp_path, dict(budget=96), [], fails=True, reader="side_by_side", tried=True)
    assert "layers.0.self_attn.attn: the cache of vLLM's CPU_ATTN has blocks of " in refusal
    assert "that its kernels lay out in a way that is not supported" in refusal


def test_settings_of_the_environment(tmp_path):
    job = [asked(problems(1), [200])]
    by_config = run_engine(tmp_path, dict(budget=96, policy="rpc"), job)
    environment = {"BEACONKV_BUDGET": "96", "BEACONKV_POLICY": "rpc"}
    by_environment = run_engine(tmp_path, {}, job, environment=environment)
    assert by_environment["rounds"] == by_config["rounds"]
    refusal = run_engine(tmp_path, None, job, fails=True, environment=environment)
    assert "--worker-cls beaconkv.integrations.vllm.worker.BoundedWorker" in refusal


SEVERAL = """
import os, sys
os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")
from vllm import LLM, SamplingParams
from beaconkv.integrations.vllm import WORKER
sampling = SamplingParams(max_tokens=150, ignore_eos=True, detokenize=False)
for more in ({}, dict(worker_cls=WORKER, additional_config={"beaconkv": {"budget": 96}}), {}):
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=512, block_size=32, enforce_eager=True,
              enable_prefix_caching=False, skip_tokenizer_init=True, **more)
    out = llm.generate([{"prompt_token_ids": [5] * 40}], sampling)
    print("tokens", len(out[0].outputs[0].token_ids))
    if more:
        print("evictions", llm.collective_rpc("bounded_stats")[0]["evictions"])
    del llm
"""


def test_engines_one_after_another_in_one_process():
    """vLLM remembers which backend it chose; a bounded engine after one of its own finds the right one."""
    done = subprocess.run([sys.executable, "-c", SEVERAL, reasoner()], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stdout.splitlines() if line.split()[:1] in (["tokens"], ["evictions"])]
    assert said == ["tokens 150", "tokens 150", "evictions 8", "tokens 150"]
