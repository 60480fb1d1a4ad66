"""Milliseconds a decode step and bytes, methods in turn within one run, so that ratios hold on a noisy machine.

    python benchmarks/decode.py --batch 1 --prompt 128 --tokens 1024 --budget 1024 --policies full,rpc,beaconkv
    python benchmarks/decode.py --preset table4     # the paper's tables, on a GPU of 80 GB

Phases are timed in steps of their own, after the others. ``dynamic`` is transformers' own DynamicCache. Random weights
of any size: ``--model random:qwen3-4b``. With ``--fill N`` every cache starts from a random prompt of N tokens read in
pieces, so that the steps measured are those near that length.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from common import (
    Decoder,
    bandwidth,
    build_model,
    new_cache,
    peak_memory,
    refuse_if_wrong,
    report,
    roofline_ms,
    spread,
)
from phases import Phases
from rich.console import Console
from rich.progress import track

from beaconkv import BoundedCache

PRESETS = {
    "table4": dict(
        model="random:qwen3-4b", dtype="bfloat16", device="cuda", batch=14, prompt=130, tokens=256, fill=32000,
        budget=2048, policies="full,beaconkv", one_by_one=True,
    ),
    "table5": dict(
        model="random:qwen3-4b", dtype="bfloat16", device="cuda", batch=192, prompt=130, tokens=600, fill=0,
        budget=2048, policies="rpc,beaconkv", one_by_one=True,
    ),
}  # fmt: skip
"""Table 4: full cache against BeaconKV at 32K tokens. Table 5: against RPC at equal budget and batch. The paper does
not say the batch of Table 4; 14 rows of 32K tokens are what fits beside the weights in its 77 GB."""

COMPILED = "(compiled)"

COLUMNS = {
    "policy": "method",
    "tokens_per_second": "tokens/s",
    "mean_ms": "mean ms",
    "median_ms": "median",
    "p99_ms": "p99",
    "max_ms": "max",
    "roofline_ms": "roofline ms",
    "overhead_percent": "policy %",
    "cache_mb": "cache MB",
    "over_formula_percent": "over formula %",
    "evictions": "evictions",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128, help="random tokens")
    parser.add_argument("--fill", type=int, default=0, help="further random tokens before the first step measured")
    parser.add_argument("--tokens", type=int, default=512, help="steps of each method")
    parser.add_argument("--phase-steps", type=int, default=128, help="further steps in which phases are timed")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--policies", default="dynamic,full,streaming_llm,rpc,snapkv,beaconkv")
    parser.add_argument("--stagger", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="each bounded method a second time, torch.compiled")
    parser.add_argument("--one-by-one", action="store_true", help="one method after the other: where memory is short")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a file the JSON line is added to")
    known, _ = parser.parse_known_args()
    if known.preset:
        parser.set_defaults(**PRESETS[known.preset])
    return parser.parse_args()


def prepared(name: str, model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace) -> Decoder:
    """A cache that has read the prompt and what fills it."""
    decoder = Decoder(model, new_cache(name.removesuffix(COMPILED).strip(), model, options.budget, options.stagger))
    for start, stop in [(0, options.prompt), *_pieces(options.prompt, options.prompt + options.fill)]:
        decoder.feed(ids[:, start:stop])
    if name.endswith(COMPILED):
        decoder.compile(ids[:, :1])
    return decoder


def _pieces(start: int, stop: int, size: int = 512) -> Iterator[tuple[int, int]]:
    for begin in range(start, stop, size):
        yield begin, min(begin + size, stop)


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict]:
    model = build_model(options.model, options.dtype, options.device)
    refuse_if_wrong(model)
    generator = torch.Generator().manual_seed(options.seed)
    size = options.batch, options.prompt + options.fill + options.tokens + options.phase_steps
    ids = torch.randint(3, model.config.vocab_size, size, generator=generator).to(model.device)
    names = options.policies.split(",")
    if options.compiled:
        names += [f"{name} {COMPILED}" for name in names if name not in ("dynamic", "full")]
    turns = [[name] for name in names] if options.one_by_one else [names]
    rows = [row for turn in turns for row in run(turn, model, ids, options)]
    rate = bandwidth(model.device)
    for row in rows:
        row["bandwidth_gb_s"] = round(rate / 1e9, 2)
        row["roofline_ms"] = round(roofline_ms(model, int(1e6 * row["cache_mb"]), rate), 2)
    return sorted(rows, key=lambda row: names.index(row["policy"]))


def run(names: list[str], model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace) -> list[dict]:
    """Some methods, in turn at each step."""
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    decoders = {name: prepared(name, model, ids, options) for name in names}
    start = options.prompt + options.fill
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for at in track(range(start, start + options.tokens), ",".join(names), console=Console(stderr=True)):
        for name, decoder in decoders.items():
            seconds[name].append(decoder.timed(ids[:, at : at + 1])[1])
    rows = []
    for name, decoder in decoders.items():
        row = {"policy": name, **spread(seconds[name], options.batch)}
        late = seconds[name][-len(seconds[name]) // 4 :]
        row["last_quarter_mean_ms"] = round(sum(late) / len(late), 3)
        row["cache_mb"] = round(decoder.cache_bytes() / 1e6, 2)
        row["peak_memory_mb"] = round(peak_memory(model.device) / 1e6, 1)
        if isinstance(decoder.cache, BoundedCache):
            stats = decoder.cache.stats
            row |= {"stats": stats.to_dict(), "evictions": stats.evictions}
            row["over_formula_percent"] = round(100 * (stats.peak_kv_bytes / stats.formula_bytes - 1), 2)
            row |= phases_of(decoder, ids, start + options.tokens, options.phase_steps)
        rows.append(row)
    return rows


def phases_of(decoder: Decoder, ids: torch.Tensor, start: int, steps: int) -> dict:
    """Milliseconds a step of each phase, over further steps; the policy's share of all."""
    total = 0.0
    with Phases(decoder.device) as phases:
        for at in range(start, start + steps):
            total += decoder.timed(ids[:, at : at + 1])[1]
    own = sum(ms for phase, ms in phases.milliseconds.items() if phase not in ("attention", "storing"))
    return {
        "phase_ms": {phase: round(ms / max(steps, 1), 4) for phase, ms in phases.milliseconds.items()},
        "overhead_percent": round(100 * own / total, 2) if total else None,
    }


def main() -> None:
    options = parse()
    rows = measure(options)
    title = (
        f"decode: {options.model} {options.dtype} {options.device}, batch {options.batch}, prompt {options.prompt}, "
        f"fill {options.fill}, budget {options.budget}, {options.tokens} steps"
    )
    report(title, rows, COLUMNS, vars(options), options.out)


if __name__ == "__main__":
    main()
