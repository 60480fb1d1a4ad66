"""Milliseconds a decode step, methods in turn within one run, so that ratios hold on a noisy machine.

    python benchmarks/decode.py --batch 1 --prompt 128 --tokens 1024 --budget 512 --policies full,beaconkv

Ends with one JSON line. "dynamic" is transformers' own DynamicCache.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from beaconkv import BoundedCache, policies
from beaconkv.integrations.transformers import cache_argument
from beaconkv.models import load
from beaconkv.provenance import provenance


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128, help="random tokens")
    parser.add_argument("--tokens", type=int, default=512, help="steps of each method")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--policies", default="dynamic,full,streaming_llm,recent,beaconkv")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def new_cache(name: str, model, budget: int):
    if name == "dynamic":
        from transformers import DynamicCache

        return DynamicCache(config=model.config)
    return BoundedCache(model, name, budget if policies()[name].evicts else None)


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict]:
    model, _ = load(options.model, options.dtype, None if options.device == "cpu" else options.device)
    wait = torch.cuda.synchronize if model.device.type == "cuda" else lambda: None
    torch.manual_seed(options.seed)
    prompt = torch.randint(3, model.config.vocab_size, (options.batch, options.prompt)).to(model.device)
    names = options.policies.split(",")
    argument = cache_argument()
    caches = {name: new_cache(name, model, options.budget) for name in names}
    step, seconds = {}, {name: [] for name in names}
    for name, cache in caches.items():
        step[name] = model(prompt, use_cache=True, **{argument: cache}).logits[:, -1:].argmax(-1)
    for _ in track(range(options.tokens), "steps", console=Console(stderr=True)):
        for name, cache in caches.items():
            wait()
            start = time.perf_counter()
            logits = model(step[name], use_cache=True, **{argument: cache}).logits
            wait()
            seconds[name].append(time.perf_counter() - start)
            step[name] = logits[:, -1:].argmax(-1)
    rows = []
    for name in names:
        ms = 1000 * torch.tensor(seconds[name])
        late = ms[-len(ms) // 4 :]
        row = {
            "policy": name,
            "tokens_per_second": round(options.batch * len(ms) / ms.sum().item() * 1000, 2),
            "mean_ms": round(ms.mean().item(), 3),
            "median_ms": round(ms.median().item(), 3),
            "p99_ms": round(ms.quantile(0.99).item(), 3),
            "max_ms": round(ms.max().item(), 3),
            "last_quarter_mean_ms": round(late.mean().item(), 3),
        }
        if name != "dynamic":
            row["stats"] = caches[name].stats.to_dict()
        rows.append(row)
    return rows


def main() -> None:
    options = parse()
    rows = measure(options)
    title = f"{options.model} {options.dtype}, batch {options.batch}, prompt {options.prompt}, budget {options.budget}"
    table = Table(title=f"{title}, {options.tokens} steps")
    for heading in ("policy", "tokens/s", "mean ms", "median", "p99", "max", "mean, last quarter", "evictions"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for row in rows:
        figures = [
            row[k] for k in ("tokens_per_second", "mean_ms", "median_ms", "p99_ms", "max_ms", "last_quarter_mean_ms")
        ]
        evictions = str(row["stats"]["evictions"]) if "stats" in row else "-"
        table.add_row(row["policy"], *(f"{x:.1f}" for x in figures), evictions)
    Console(width=110).print(table)
    print(json.dumps({"rows": rows, "options": vars(options), **provenance(seed=options.seed)}))


if __name__ == "__main__":
    main()
