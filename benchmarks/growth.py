"""The time of a step: of the full cache against its length, of a bounded one against its budget, at several batches.

    python benchmarks/growth.py --batches 8 --lengths 64,512,1024,2048,4096,8000 --budgets 512

The full cache (transformers' DynamicCache) is filled with random keys and values, since a step's cost does not depend
on them; each bounded cache reads random tokens until it is full and is measured over whole cycles, evictions included.
The curve gives the break-even length, and the time of a whole generation: the curve summed over its steps.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import Decoder, build_model, new_cache, refuse_if_wrong, report, spread
from rich.console import Console
from rich.progress import track

COLUMNS = {
    "batch": "batch",
    "policy": "method",
    "entries": "entries",
    "mean_ms": "mean ms",
    "median_ms": "median",
    "max_ms": "max",
    "tokens_per_second": "tokens/s",
    "cache_mb": "cache MB",
    "break_even": "break-even length",
    "gain_at_longest": "x at longest",
    "gain_whole": "x whole generation",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--lengths", default="64,512,1024,2048,4096,8000")
    parser.add_argument("--budgets", default="256,512,1024")
    parser.add_argument("--policies", default="beaconkv")
    parser.add_argument("--steps", type=int, default=16, help="number of steps of the full cache at each length")
    parser.add_argument(
        "--cycles", type=int, default=2, help="number of cycles of B_max - B_min steps of each bounded cache"
    )
    parser.add_argument("--picture", help="path of a PNG of the curves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="path of a file the JSON line is added to")
    return parser.parse_args()


def filled(model: torch.nn.Module, batch: int, length: int) -> Decoder:
    """The full cache with ``length`` random entries."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = new_cache("dynamic", model, 0)
    for layer in range(config.num_hidden_layers):
        pair = (torch.randn(batch, heads, length, dim, dtype=model.dtype, device=model.device) for _ in range(2))
        cache.update(*pair, layer)
    return Decoder(model, cache)


def steps(decoder: Decoder, batch: int, number: int, ids: torch.Tensor) -> list[float]:
    """Milliseconds of ``steps`` steps, after two that are not counted."""
    times = [decoder.timed(ids[:, i % ids.shape[1]].unsqueeze(1))[1] for i in range(number + 2)]
    return times[2:]


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict]:
    model = build_model(options.model, options.dtype, options.device)
    refuse_if_wrong(model)
    batches, lengths, budgets = (
        [int(x) for x in text.split(",")] for text in (options.batches, options.lengths, options.budgets)
    )
    generator = torch.Generator().manual_seed(options.seed)
    jobs = [(b, "dynamic", n) for b in batches for n in lengths]
    jobs += [(b, p, n) for b in batches for p in options.policies.split(",") for n in budgets]
    rows = []
    for batch, policy, entries in track(jobs, "cells", console=Console(stderr=True)):
        ids = torch.randint(3, model.config.vocab_size, (batch, 64), generator=generator).to(model.device)
        if policy == "dynamic":
            decoder, number = filled(model, batch, entries), options.steps
        else:
            decoder = Decoder(model, new_cache(policy, model, entries))
            prompt = torch.randint(3, model.config.vocab_size, (batch, entries + 1), generator=generator)
            decoder.feed(prompt.to(model.device))
            schedule = decoder.cache.schedule
            number = options.cycles * (schedule.budget - schedule.budget_min)
        row = {"batch": batch, "policy": policy, "entries": entries}
        row |= spread(steps(decoder, batch, number, ids), batch)
        row["cache_mb"] = round(decoder.cache_bytes() / 1e6, 1)
        if policy != "dynamic":
            row["evictions"] = decoder.cache.stats.evictions
        rows.append(row)
        del decoder
    for row in rows:
        if row["policy"] != "dynamic":
            compare(row, [r for r in rows if r["policy"] == "dynamic" and r["batch"] == row["batch"]])
    return rows


def compare(row: dict, full: list[dict]) -> None:
    """A bounded cache against the curve of the full one: linear between its points."""
    lengths, ms = [r["entries"] for r in full], [r["mean_ms"] for r in full]
    every = np.interp(np.arange(1, lengths[-1] + 1), lengths, ms)
    dearer = every > row["mean_ms"]
    row["break_even"] = int(dearer.argmax()) + 1 if dearer.any() else None
    row["gain_at_longest"] = round(ms[-1] / row["mean_ms"], 2)
    own = np.where(np.arange(1, lengths[-1] + 1) < row["entries"], np.minimum(every, row["mean_ms"]), row["mean_ms"])
    row["gain_whole"] = round(float(every.sum() / own.sum()), 2)


def draw(rows: list[dict], path: str) -> None:
    """Draw milliseconds per step against length."""
    from matplotlib import pyplot as plt

    batches = sorted({row["batch"] for row in rows})
    figure, axes = plt.subplots(1, len(batches), figsize=(5 * len(batches), 3.8), squeeze=False, layout="constrained")
    for axis, batch in zip(axes[0], batches, strict=True):
        full = [row for row in rows if row["batch"] == batch and row["policy"] == "dynamic"]
        longest = full[-1]["entries"]
        axis.plot([r["entries"] for r in full], [r["mean_ms"] for r in full], "k--o", ms=4, label="full cache")
        bounded = [row for row in rows if row["batch"] == batch and row["policy"] != "dynamic"]
        colours = plt.cm.viridis(np.linspace(0.15, 0.8, len(bounded)))
        for row, colour in zip(bounded, colours, strict=True):
            label = f"{row['policy']}, budget {row['entries']:,}"
            axis.plot([row["entries"], longest], [row["mean_ms"]] * 2, color=colour, lw=2, label=label)
        axis.set(title=f"batch {batch}", xlabel="tokens seen", ylabel="ms a step", ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=140)


def main() -> None:
    options = parse()
    rows = measure(options)
    report(f"growth: {options.model} {options.dtype} {options.device}", rows, COLUMNS, vars(options), options.out)
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
