"""Each operation, reference against its faster twins, over shapes of real models: microseconds, and the ratio.

    python benchmarks/operations.py

Twins that give other results than the reference are not reported: the program ends.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from common import report
from rich.console import Console
from rich.progress import track

from beaconkv import ops
from beaconkv.types import AttentionParams, Rope

MODELS = {"SmolLM2-135M": (30, 9, 3, 64), "Qwen3-4B": (36, 32, 8, 128), "Llama-8B": (32, 32, 8, 128)}
"""Layers, H, H_kv, D."""
COLUMNS = {
    "operation": "operation",
    "shape": "shape",
    "budget": "budget",
    "reference_us": "reference us",
    "fused_us": "fused us",
    "fused_gain": "x",
    "triton_us": "triton us",
    "triton_gain": "x",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--layers", type=int, default=0, help="number of layers whose heads are stacked; 0: all of the model"
    )
    parser.add_argument("--budgets", default="512,2048")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", help="path of a file the JSON line is added to")
    return parser.parse_args()


def cases(heads: int, kv_heads: int, dim: int, budget: int, options: argparse.Namespace):
    """Cases (name, arguments, whether its first argument is changed in place)."""
    where = dict(device=options.device, dtype=getattr(torch, options.dtype))
    batch = options.batch
    queries = torch.randn(batch, heads, 32, dim, **where)
    slab = torch.randn(batch, kv_heads, budget + 8, dim, **where)
    positions = torch.arange(budget, dtype=torch.int32, device=options.device).expand(batch, kv_heads, -1)
    at = torch.full((batch, 32), budget - 1, device=options.device)
    at[:, 16:] = torch.arange(budget - 16, budget, device=options.device)
    params = AttentionParams(dim**-0.5)
    yield "farthest_point_sampling", (queries, 16), False
    yield "observation_scores", (queries.float(), slab[:, :, :budget], params, at, positions.contiguous()), False
    keep = (
        torch.rand(batch, kv_heads, budget, device=options.device).argsort(-1)[..., : 7 * budget // 8].sort(-1).values
    )
    yield "fill_holes", ([slab], ops.fill_holes_source(keep, budget), budget), True
    angle = torch.randn(1, 16, dim, device=options.device)
    rope = Rope(angle.cos(), angle.sin(), ops.apply_half)
    yield "unrotate_into", (torch.zeros(batch, heads, 32, dim, **where), 16, queries[:, :, :16], rope), True


def microseconds(function, arguments: tuple, repeats: int, device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    function(*arguments)
    best = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        function(*arguments)
        wait()
        best.append(time.perf_counter() - start)
    return 1e6 * sorted(best)[len(best) // 2]


def result(function, arguments: tuple, in_place: bool) -> torch.Tensor:
    if not in_place:
        return function(*arguments)
    target = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
    own = target.clone()
    function(*([[own]] if isinstance(arguments[0], list) else [own]), *arguments[1:])
    return own


def same(name: str, got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether results are equal. Picks may differ where queries are equally far up to rounding, rarely on random
    queries."""
    if got.dtype == torch.int64:
        return (got == expected).float().mean() > 0.99
    return torch.allclose(got.float(), expected.float(), rtol=1e-3, atol=1e-5)


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict]:
    torch.manual_seed(0)
    rows = []
    jobs = [(model, int(budget)) for model in MODELS for budget in options.budgets.split(",")]
    for model, budget in track(jobs, "shapes", console=Console(stderr=True)):
        layers, heads, kv_heads, dim = MODELS[model]
        layers = options.layers or layers
        for name, arguments, in_place in cases(layers * heads, layers * kv_heads, dim, budget, options):
            implementations = dict(getattr(ops, name).implementations)
            if options.device != "cuda":
                implementations.pop("triton", None)
            row = {"operation": name, "shape": f"{model}, {layers} layers", "budget": budget}
            expected = result(implementations["reference"], arguments, in_place)
            for level, function in implementations.items():
                if not same(name, result(function, arguments, in_place), expected):
                    sys.exit(f"nothing is reported: {name}, {level}, gives another result at {row['shape']}, {budget}")
                took = microseconds(function, arguments, options.repeats, options.device)
                row[f"{level}_us"] = round(took, 1)
                if level != "reference":
                    row[f"{level}_gain"] = round(row["reference_us"] / took, 2)
            rows.append(row)
    return rows


def main() -> None:
    options = parse()
    rows = measure(options)
    report(
        f"operations: {options.dtype} {options.device}, batch {options.batch}",
        rows,
        COLUMNS,
        vars(options),
        options.out,
    )


if __name__ == "__main__":
    main()
