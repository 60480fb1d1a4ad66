"""Milliseconds per decode step and bytes, methods in turn within one run, so that ratios hold on a noisy machine.

    python benchmarks/decode.py --batch 1 --prompt 128 --tokens 1024 --budget 1024 --policies full,rpc,beaconkv
    python benchmarks/decode.py --preset table4-full     # a block of the paper's tables, on a GPU of 80 GB

Phases are timed in steps of their own, after the others. ``dynamic`` is transformers' own DynamicCache. Random weights
of any size: ``--model random:qwen3-4b``. With ``--fill N`` every cache starts from a random prompt of N tokens read in
chunks, so that the steps measured are those near that length.

``--text N`` gives the mean rate over a whole text of N written tokens, as papers do: steps are measured at each length
of ``--fills`` (whole cycles where evictions come), and the curve through them is summed over the N steps. The title of
the table names this an integral of a measured curve. ``--whole`` takes all N steps instead, which may take hours.
"""

from __future__ import annotations

import argparse
import sys
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
from curve import Curve, as_lengths, cycle_steps
from phases import Phases
from rich.console import Console
from rich.progress import track

from beaconkv import BoundedCache
from beaconkv.cache import state_bytes
from beaconkv.policies import parse_policy

QWEN3_4B = dict(
    model="random:qwen3-4b", dtype="bfloat16", device="cuda", prompt=130, tokens=64, text=32768, one_by_one=True,
)  # fmt: skip
"""Settings of all of the paper's system tables: Qwen3-4B, 32K generated tokens, rates as means over all of them. The
sources do not give the length of the prompt."""

PRESETS = {
    "table4-full": dict(
        **QWEN3_4B, batch=14, budget=2048, policies="full,beaconkv", fills="0,2048,8192,16384,24576,32640"
    ),
    "table4-2k": dict(**QWEN3_4B, batch=192, budget=2048, policies="rpc,beaconkv", fills="0,2048,3072", chunk=128),
    "table4-1k": dict(**QWEN3_4B, batch=320, budget=1024, policies="rpc,beaconkv", fills="0,1024,2048", chunk=128),
    "table5": dict(**QWEN3_4B, batch=320, budget=1024, policies="snapkv,rpc,beaconkv", fills="0,1024,2048", chunk=128),
}
"""Table 4's three blocks: BeaconKV against the full cache at batch 14, against RPC at 2K and batch 192, and at 1K and
batch 320; Table 5: the last one with SnapKV. A bounded cache costs the same at every length: its curve is short."""

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
TEXT_COLUMNS = {
    "policy": "method",
    "text_tokens_per_second": "tokens/s of the text",
    "text_seconds": "seconds",
    "mean_ms": "mean ms at its end",
    "overhead_percent": "policy %",
    "cache_mb": "cache MB",
    "peak_memory_mb": "peak MB",
    "evictions": "evictions",
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128, help="number of random tokens of the prompt")
    parser.add_argument(
        "--fill", type=int, default=0, help="number of further random tokens before the first step measured"
    )
    parser.add_argument("--chunk", type=int, default=512, help="number of tokens of the fill in each chunk")
    parser.add_argument(
        "--tokens", type=int, default=512, help="number of steps of each method; with --text, at each length"
    )
    parser.add_argument("--text", type=int, help="number of written tokens over which the mean rate is computed")
    parser.add_argument(
        "--fills", default="0", help="with --text: numbers of tokens after the prompt at which steps are measured"
    )
    parser.add_argument("--whole", action="store_true", help="whether to measure all steps of --text, not a curve")
    parser.add_argument(
        "--phase-steps", type=int, default=128, help="number of further steps in which phases are timed"
    )
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--policies", default="dynamic,full,streaming_llm,rpc,snapkv,beaconkv")
    parser.add_argument("--stagger", type=int, default=1)
    parser.add_argument(
        "--compiled", action="store_true", help="whether to measure each bounded method a second time, torch.compiled"
    )
    parser.add_argument(
        "--one-by-one",
        action="store_true",
        help="whether to measure one method after the other, which takes less memory",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="path of a file the JSON line is added to")
    known, _ = parser.parse_known_args(arguments)
    if known.preset:
        parser.set_defaults(**PRESETS[known.preset])
    options = parser.parse_args(arguments)
    if options.whole:
        if not options.text:
            parser.error("--whole needs --text, the number of tokens of the whole text")
        options.tokens, options.fill = options.text, 0
    if options.text and not options.whole and (options.compiled or options.fill):
        parser.error("--text measures eager steps at each length of --fills: leave out --compiled and --fill")
    return options


def prepared(name: str, model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace) -> Decoder:
    """A cache that has read the prompt and the fill."""
    decoder = Decoder(model, new_cache(name.removesuffix(COMPILED).strip(), model, options.budget, options.stagger))
    for start, stop in [(0, options.prompt), *_chunks(options.prompt, options.prompt + options.fill, options.chunk)]:
        decoder.feed(ids[:, start:stop])
    if name.endswith(COMPILED):
        decoder.compile(ids[:, :1])
    return decoder


def _chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    for begin in range(start, stop, size):
        yield begin, min(begin + size, stop)


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict]:
    model = build_model(options.model, options.dtype, options.device)
    refuse_if_wrong(model)
    generator = torch.Generator().manual_seed(options.seed)
    last = as_lengths(options.fills)[-1] + 2 * options.budget if options.text else options.fill
    size = options.batch, options.prompt + last + options.tokens + options.phase_steps
    ids = torch.randint(3, model.config.vocab_size, size, generator=generator).to(model.device)
    names = options.policies.split(",")
    if options.compiled:
        names += [f"{name} {COMPILED}" for name in names if name not in ("dynamic", "full")]
    turns = [[name] for name in names] if options.one_by_one else [names]
    measured = run_along_text if options.text and not options.whole else run
    rows = [row for turn in turns for row in measured(turn, model, ids, options)]
    rate = bandwidth(model.device)
    for row in rows:
        row["bandwidth_gb_s"] = round(rate / 1e9, 2)
        row["roofline_ms"] = round(roofline_ms(model, int(1e6 * row["cache_mb"]), rate), 2)
    return sorted(rows, key=lambda row: names.index(row["policy"]))


def run(names: list[str], model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace) -> list[dict]:
    """Measure some methods, in turn at each step."""
    forget_peak(model.device)
    decoders = {name: prepared(name, model, ids, options) for name in names}
    start = options.prompt + options.fill
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for at in track(range(start, start + options.tokens), ",".join(names), console=Console(stderr=True)):
        for name, decoder in decoders.items():
            seconds[name].append(decoder.timed(ids[:, at : at + 1])[1])
    rows = []
    for name, decoder in decoders.items():
        row = row_of(name, decoder, seconds[name], ids, start + options.tokens, options)
        if options.whole:
            row |= text_rate(sum(seconds[name]) / 1000, options)
        rows.append(row)
    return rows


def run_along_text(
    names: list[str], model: torch.nn.Module, ids: torch.Tensor, options: argparse.Namespace
) -> list[dict]:
    """Measure some methods, in turn at each step, at each length of a text, and sum the curves over all its steps."""
    forget_peak(model.device)
    decoders = {name: prepared(name, model, ids, options) for name in names}
    seen, curves, seconds = (
        dict.fromkeys(names, options.prompt),
        {name: Curve(grows(name, options.budget)) for name in names},
        {},
    )
    for fill in track(as_lengths(options.fills), ",".join(names), console=Console(stderr=True)):
        number = {}
        for name, decoder in decoders.items():
            for start, stop in _chunks(seen[name], options.prompt + fill, options.chunk):
                decoder.feed(ids[:, start:stop])
            seen[name] = max(seen[name], options.prompt + fill)
            number[name] = cycle_steps(options.tokens, *cycle_of(decoder))
        seconds = {name: [] for name in names}
        for step in range(max(number.values())):
            for name, decoder in decoders.items():
                if step < number[name]:
                    at = seen[name] + step
                    seconds[name].append(decoder.timed(ids[:, at : at + 1])[1])
        for name in decoders:
            curves[name].add(seen[name], seconds[name])
            seen[name] += number[name]
    rows = []
    for name, decoder in decoders.items():
        try:
            whole = curves[name].seconds(options.prompt, options.prompt + options.text)
        except ValueError as error:
            sys.exit(f"nothing is reported of {name}: {error}")
        row = row_of(name, decoder, seconds[name], ids, seen[name], options) | text_rate(whole, options)
        row["curve"] = [(length, round(ms, 3)) for length, ms in curves[name].points]
        rows.append(row)
    return rows


def grows(name: str, budget: int) -> bool:
    """Whether a method's cache, or its policy's state, grows with the text."""
    if name == "dynamic" or not (policy := parse_policy(name).policy).evicts:
        return True
    early, late = (state_bytes(policy, budget, length, 1, 1, 2, torch.float32) for length in (4096, 8192))
    return late > early


def cycle_of(decoder: Decoder) -> tuple[int | None, int]:
    """(steps from one eviction to the next, steps before the first one); (None, 0) of a cache without evictions."""
    schedule = getattr(decoder.cache, "schedule", None)
    if schedule is None or schedule.budget is None:
        return None, 0
    stats = decoder.cache.stats
    return schedule.budget - schedule.budget_min, 0 if stats.evictions else schedule.budget - stats.entries


def text_rate(seconds: float, options: argparse.Namespace) -> dict[str, float]:
    """The numbers that papers report of a text: tokens per second of the batch, and the time it took."""
    return {
        "text_tokens_per_second": round(options.batch * options.text / seconds, 2),
        "text_seconds": round(seconds, 2),
    }


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def row_of(
    name: str, decoder: Decoder, seconds: list[float], ids: torch.Tensor, seen: int, options: argparse.Namespace
) -> dict:
    """The report of one method after its last steps. ``seen``: number of tokens after which phases are timed."""
    row = {"policy": name, **spread(seconds, options.batch)}
    late = seconds[-len(seconds) // 4 :]
    row["last_quarter_mean_ms"] = round(sum(late) / len(late), 3)
    row["cache_mb"] = round(decoder.cache_bytes() / 1e6, 2)
    row["peak_memory_mb"] = round(peak_memory(decoder.device) / 1e6, 1)
    if isinstance(decoder.cache, BoundedCache):
        stats = decoder.cache.stats
        row |= {"stats": stats.to_dict(), "evictions": stats.evictions}
        row["over_formula_percent"] = round(100 * (stats.peak_kv_bytes / stats.formula_bytes - 1), 2)
        row |= phases_of(decoder, ids, seen, options.phase_steps)
    return row


def phases_of(decoder: Decoder, ids: torch.Tensor, start: int, steps: int) -> dict:
    """Milliseconds per step of each phase, over further steps; the policy's share of all."""
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
    title = f"decode: {options.model} {options.dtype} {options.device}, batch {options.batch}, budget {options.budget}"
    if options.whole:
        title += f", all {options.text:,} steps of a text behind a prompt of {options.prompt}"
    elif options.text:
        title += (
            f", {options.text:,} tokens behind a prompt of {options.prompt}: an integral of a curve measured at "
            f"{options.fills}"
        )
    else:
        title += f", prompt {options.prompt}, fill {options.fill}, {options.tokens} steps"
    report(title, rows, TEXT_COLUMNS if options.text else COLUMNS, vars(options), options.out)


if __name__ == "__main__":
    main()
