"""Results as ``beaconkv eval`` and ``beaconkv fidelity`` write them, of samples drawn by a rule. For tests alone."""

import hashlib
import json
import math

import numpy as np

from beaconkv.evaluation import summarize

STRENGTH = {"full": 3.0, "beaconkv": 1.4, "recent": 0.4, "rpc": 0.2, "snapkv": 0.0, "rkv": 0.6, "h2o": -0.4}


def samples(policies, budgets, tasks, problems=12, seed=0):
    """One sample for each policy, budget, task and problem; better methods and larger budgets are right more often."""
    for policy in policies:
        for budget in [None] if policy == "full" else budgets:
            for number, task in enumerate(tasks):
                key = hashlib.sha256(f"{policy}/{budget}/{task}/{seed}".encode()).digest()
                rng = np.random.default_rng(int.from_bytes(key[:8], "big"))
                level = STRENGTH.get(policy.partition(":")[0], key[8] / 256 - 0.4) + (key[9] / 256 - 0.5) / 3
                size = 12 if budget is None else math.log2(budget)
                chance = 1 / (1 + math.exp(-(level + 0.9 * (size - 8) - 0.4 * number + 0.3)))
                for problem in range(problems):
                    right = bool(rng.random() < chance)
                    yield {
                        "policy": policy, "budget": budget, "task": task, "problem": f"{task}/{problem}", "run": 0,
                        "correct": right, "steps_right": round(min(1.0, right + chance * rng.random()), 4),
                        "prompt_tokens": 150,
                        "tokens": int(900 + 300 * rng.random() + 400 * (not right)),
                        "capped": not right and key[10] > 99,
                        "loop": False, "evictions": 0 if budget is None else 1500 // budget,
                        "kv_bytes": 1536 * 1024 * (budget or 1536) // 256, "state_bytes": 99_000 + 90 * (budget or 1600)
                        + 1_500_000 * (policy in ("naive_fps", "kmeans_centroid", "kmeans_nearest")),
                    }  # fmt: skip


def eval_result(policies, budgets, tasks=("machine",), problems=12, reference="beaconkv", **changes):
    """A document; ``changes`` go to its settings."""
    rows = summarize(samples(policies, budgets, tasks, problems), reference)
    cells = [(p, b) for p in policies for b in ([None] if p == "full" else budgets)]
    schedules = [{"policy": p, "budget": b} | ({} if b is None else {"prefix": 4, "protect": 32}) for p, b in cells]
    settings = {
        "weights": "9ce1b7f82b6ee196", "tasks": dict.fromkeys(tasks, "3b1d4c8e2d053c78"),
        "sampling": {"max_new_tokens": 1800, "temperature": 0.0, "top_p": 0.95},
        "seed": 0, "batch_size": 50, "runs": 1, "reference": reference,
    }  # fmt: skip
    command = ["beaconkv", "eval", "-m", "models/reasoner", "--policies", ",".join(policies),
               "--budgets", ",".join(map(str, budgets)), "--out", "results/eval"]  # fmt: skip
    return {
        "rows": rows, "schedules": schedules, "settings": settings | changes, "command": command,
        "time": "2026-01-01T00:00:00+00:00", "versions": {"beaconkv": "0.1.0"},
        "machine": {"processor": "a processor", "accelerator": None},
        "model": "models/reasoner", "dtype": "float32", "seed": 0,
    }  # fmt: skip


def fidelity_result(policies, budgets, texts=8):
    """A document of ``beaconkv fidelity``."""
    rows = []
    for policy in policies:
        for budget in [None] if policy == "full" else budgets:
            kl = 1e-9 if budget is None else 3 * math.exp(-STRENGTH.get(policy, 0.3)) * 2.0 ** (-budget / 120)
            rows.append({
                "policy": policy, "budget": budget, "texts": texts,
                "kl": {"mean": kl, "low": 0.7 * kl, "high": 1.4 * kl},
                "agreement": {"mean": 0.9, "low": 0.88, "high": 0.93},
                "perplexity_full": {"mean": 4.0, "low": 3.5, "high": 4.5},
                "perplexity": {"mean": 4.0 * math.exp(kl), "low": 3.5, "high": 4.6},
                "mass_lost": None if budget is None else {"mean": 0.03, "low": 0.02, "high": 0.04},
                "difference": {}, "evictions": 9.0, "kv_bytes": 1e6, "peak_kv_bytes": 1e6, "state_bytes": 1e5,
            })  # fmt: skip
    return {
        "rows": rows, "records": [{"text": f"text {i}"} for i in range(texts)],
        "settings": {"rows": 8, "chunk": 512, "mass_every": 8, "seed": 0}, "against": None,
        "command": ["beaconkv", "fidelity", "--texts", "chains.jsonl"], "model": "smollm2-135m", "dtype": "float32",
        "seed": 0, "texts": "chains.jsonl",
    }  # fmt: skip


def write(path, document):
    """Write it; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
