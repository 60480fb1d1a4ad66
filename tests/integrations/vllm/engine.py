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
ROUNDED = ["beaconkv", "beaconkv:value_norm=true", "rkv"]
"""Policies whose scores come from queries and keys, from values too, from keys against each other."""
AGREE = 0.8
"""What :func:`agreement` is at least in bfloat16, where two hosts round differently. On a CPU it is 0.92 to 0.95 for
these policies, and 0.37 to 0.38 where the cache is misread."""
PIECE = 128
"""Tokens of a prompt between two evictions: what vLLM is told to take in at a time."""


@cache
def reasoner():
    """The folder of the bundled model."""
    return str(resolve("reasoner", lambda message: None)[0])


def run_engine(tmp_path, bounded, rounds, fails=False, environment=(), reader=None, tried=False, **engine):
    """What the driver returns; with ``fails``, the end of what it printed instead."""
    job = {"engine": {"model": reasoner()} | engine, "bounded": bounded, "rounds": rounds}
    job |= {"reader": reader, "tried": tried}
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


def asked(prompts, lengths, **more):
    return [{"prompt": list(p), "max_tokens": n, **more} for p, n in zip(prompts, lengths, strict=True)]


def first_of(round_):
    """The first sample of each request of a round."""
    return [samples[0] for samples in round_]


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
        cache = {}
        if settings:
            cache[cache_argument()] = noted_cache(model, number, events, settings)
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


def noted_cache(model, number, events, settings):
    """A bounded cache that notes (request, layer, tokens seen, positions kept by each head) of its evictions."""

    def note(event):
        events.append((str(number), event.layer, event.now[0] + 1, event.kept[0].tolist()))

    return BoundedCache(model, **{"prefill_chunk": PIECE} | settings, on_evict=note)


def transformers_events(model, prompts, written, **settings):
    """The events of bounded caches in transformers that are shown given texts: what was written does not matter."""
    events = []
    for number, (prompt, tokens) in enumerate(zip(prompts, written, strict=True)):
        cache = noted_cache(model, number, events, settings)
        with torch.inference_mode():
            for ids in (prompt, *([token] for token in tokens[:-1])):
                ids = torch.tensor([ids], device=model.device)
                model(ids, use_cache=True, logits_to_keep=1, **{cache_argument(): cache})
    return events


def due_events(events, prompts, lengths):
    """Sorted, without the last of a request: vLLM evicts before the next token comes, so that one may not happen."""
    ends = {str(n): len(p) + length - 1 for n, (p, length) in enumerate(zip(prompts, lengths, strict=True))}
    return sorted(tuple(event) for event in events if event[2] < ends[event[0]])


def agreement(one, other, prefix=4, protect=32):
    """Of the positions kept by each head at each eviction, the share that both kept; without those never evicted."""
    shares = []
    assert [event[:3] for event in one] == [event[:3] for event in other]
    for (_, _, seen, ours), (_, _, _, theirs) in zip(one, other, strict=True):
        for head, its in zip(ours, theirs, strict=True):
            free = [{p for p in kept if prefix <= p < seen - protect} for kept in (head, its)]
            assert len(head) == len(its)
            shares.append(len(free[0] & free[1]) / max(map(len, free)))
    return sum(shares) / len(shares)


def rounded_agreement(tmp_path, model, policy, reader=None, **engine):
    """(agreement, result): an engine in bfloat16 and bounded caches in transformers, on the texts the engine wrote."""
    some = problems(4)
    prompts, lengths = [some[0], some[1][:40], (some[2] + some[3]) * 2], [300, 300, 200]
    settings = dict(policy=policy, budget=144)
    job = [asked(prompts, lengths)]
    result = run_engine(tmp_path, settings, job, reader=reader, **{"dtype": "bfloat16"} | engine)
    events = transformers_events(model, prompts, first_of(result["rounds"][0]), **settings)
    ours, theirs = (due_events(found, prompts, lengths) for found in (result["events"], events))
    assert len(theirs) > 100
    return agreement(ours, theirs), result
