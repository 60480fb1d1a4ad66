"""An engine in a process of its own, and what transformers does with the same prompts."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from beaconkv import BoundedCache
from beaconkv.integrations.transformers import cache_argument
from beaconkv.models.load import resolve

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not here: make test-vllm")
DRIVER = Path(__file__).with_name("driver.py")
PIECE = 128
"""Tokens of a prompt between two evictions: what vLLM is told to take in at a time."""


@cache
def reasoner():
    """The folder of the bundled model."""
    return str(resolve("reasoner", lambda message: None)[0])


def run_engine(tmp_path, bounded, rounds, fails=False, environment=(), **engine):
    """What the driver returns; with ``fails``, the end of what it printed instead."""
    job = {"engine": {"model": reasoner()} | engine, "bounded": bounded, "rounds": rounds}
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(result)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **dict(environment)},
        timeout=300,
    )
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, output[-3000:]
    return output if fails else json.loads(result.read_text())


@cache
def problems(count):
    """Prompts of the bundled model's own kind, as token ids: it looks back at them while it writes."""
    from beaconkv.evaluation import load_tasks
    from beaconkv.models import load

    tokenizer = load("reasoner").tokenizer
    drawn = [task.problems for task in load_tasks("reasoning@0.66", -(-count // 4))]
    prompts = [problem.prompt for same_place in zip(*drawn, strict=True) for problem in same_place]
    return [tokenizer(prompt)["input_ids"] for prompt in prompts[:count]]


def transformers_tokens(model, prompts, lengths, **settings):
    """(tokens, events): greedy continuations by transformers, each prompt alone, with a bounded cache."""
    model.generation_config.eos_token_id = None
    tokens, events = [], []
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):

        def note(event, number=number):
            events.append((str(number), event.layer, event.now[0] + 1, event.kept[0].tolist()))

        cache = {}
        if settings:
            cache[cache_argument()] = BoundedCache(model, **{"prefill_chunk": PIECE} | settings, on_evict=note)
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=length,
                pad_token_id=0,
                **cache,
            )
        tokens.append(out[0, len(prompt) :].tolist())
    return tokens, events
