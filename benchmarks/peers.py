"""BeaconKV against other people's caches: milliseconds a decode step, bytes, entries.

    python benchmarks/peers.py --batch 1 --prompt 128 --tokens 512 --budget 256

One process, one set of weights (each method has a model object of its own around the same tensors, so that hooks of one
never run in another), the same random tokens for all, methods in turn at each step in an order that rotates, so that
ratios hold on a noisy machine. Only the forward pass is timed. Every pass receives the true positions.

    dynamic            transformers' DynamicCache
    static             transformers' StaticCache of prompt + tokens entries allocated at the start; nothing is compiled
    sliding            transformers' DynamicCache of a copied config with sliding_window = budget: the newest tokens
    kvpress-snapkv     NVIDIA kvpress, DecodingPress(SnapKVPress)
    kvpress-knorm      NVIDIA kvpress, DecodingPress(KnormPress): keys of small norm stay, no queries needed
    full               BoundedCache that never evicts
    snapkv, beaconkv   BoundedCache with --budget

How DecodingPress is set: BoundedCache evicts when it holds B_max = budget entries, down to B_min = 7/8 budget.
DecodingPress compresses every `compression_interval` decode steps, whatever it holds, down to `target_size`; so
target_size = B_min and compression_interval = B_max - B_min. Both then hold B_min to B_max entries, and evict equally
often. It counts steps from the prompt's end and never compresses the prompt, which must fit into B_min here. It
forgets its buffered hidden states at each compression, and SnapKVPress needs more of them than its window: the window
is 32 as in BoundedCache's snapkv, or compression_interval - 1 if that is less. As the counter and not the size decides,
the first compression may come earlier than at B_max, unless B_max - prompt is a multiple of the interval.

Nothing is reported (exit status 1) unless
  - "full", and "beaconkv" with a budget that is not reached, write the same greedy tokens as DynamicCache;
  - every method's logits equal DynamicCache's as long as it has not dropped anything ("full" and "static": always);
  - entries of every layer, read from the caches after each step and before each compression, lie in B_min to B_max;
  - DynamicCache gives the same bits after the run as before, and no hook of kvpress is left.

Bytes: "cache" is the storage of keys and values plus the method's state (hidden states of kvpress;
queries and positions of BoundedCache), at the end and at the peak over all steps. Not counted: DynamicCache and the
presses copy one layer at each step, so that for a moment a layer is there twice. Importing kvpress wraps all attention
functions of transformers permanently; this costs all methods here one Python call per layer.

kvpress needs transformers < 5.3. The first start makes an environment for it, .venv-kvpress, and runs itself there.
Ends with a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-kvpress"
PYTHON = VENV / "bin" / "python"
SOURCES = [ROOT / name for name in ("pyproject.toml", "constraints.txt", "constraints-kvpress.txt")]
METHODS = ("dynamic", "static", "sliding", "kvpress-snapkv", "kvpress-knorm", "full", "snapkv", "beaconkv")
COLUMNS = {
    "tokens/s": "tokens_per_second",
    "mean ms": "mean_ms",
    "median": "median_ms",
    "p99": "p99_ms",
    "max": "max_ms",
    "last 1/4": "last_quarter_mean_ms",
    "ratio": "ratio_to_beaconkv",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=128, help="number of random tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=512, help="number of steps of each method")
    parser.add_argument("--budget", type=int, default=256, help="maximum number of entries per layer and KV head")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--methods", default=",".join(METHODS), help="methods, separated by commas; dynamic and beaconkv always run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="path of a file that the JSON line is written to, too")
    options = parser.parse_args()
    if not 2 <= options.prompt <= 7 * options.budget // 8:
        parser.error(
            f"--prompt must be 2 to 7/8 of the budget ({7 * options.budget // 8}): DecodingPress keeps it whole"
        )
    chosen = {"dynamic", "beaconkv", *options.methods.split(",")}
    if unknown := chosen - set(METHODS):
        parser.error(f"--methods: unknown {', '.join(sorted(unknown))}; choose from {', '.join(METHODS)}")
    options.methods = [name for name in METHODS if name in chosen]
    if min(options.batch, options.tokens) < 1:
        parser.error("--batch and --tokens must be at least 1")
    return options


def enter_environment() -> None:
    """Continue in .venv-kvpress, which is made if it is missing or older than the files it is made from."""
    if Path(sys.prefix).resolve() == VENV.resolve():
        return
    ready = VENV / "ready"
    if not ready.exists() or ready.stat().st_mtime < max(source.stat().st_mtime for source in SOURCES):
        print("setting up .venv-kvpress; a few minutes, once", file=sys.stderr)
        pip = [PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--prefer-binary"]
        wanted = ["-c", SOURCES[-1], "-e", f"{ROOT}[cli,gguf]", "kvpress"]
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([*pip, *wanted], check=True)
        ready.touch()
    os.execv(PYTHON, [str(PYTHON), *sys.argv])


def origin(seed: int) -> dict:
    """Provenance of the numbers: versions, machine, commit."""
    from importlib.metadata import version

    from beaconkv.provenance import provenance

    source = provenance(seed=seed)
    source["versions"]["kvpress"] = version("kvpress")
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=ROOT, capture_output=True)
    return {**source, "commit": git.stdout.decode().strip() or None}


def show(rows: list[dict], title: str) -> None:
    """The table. Times in milliseconds a step, their ratio to the mean of beaconkv, bytes in MiB."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in ("cache", *COLUMNS, "MiB end", "peak", "entries"):
        table.add_column(heading, justify="left" if heading == "cache" else "right", no_wrap=True)
    for row in rows:
        figures = [f"{row[key]:.{2 if key.startswith('ratio') else 1}f}" for key in COLUMNS.values()]
        sizes = [f"{row[key] / 2**20:.1f}" for key in ("cache_bytes", "peak_cache_bytes")]
        table.add_row(row["cache"], *figures, *sizes, f"{row['entries_least']}-{row['entries_most']}")
    Console(width=120).print(table)


def main() -> None:
    options = parse()
    enter_environment()
    from peer_caches import UnequalError, race

    try:
        rows = race(options)
    except UnequalError as reason:
        sys.exit(f"not reported: {reason}")
    size = f"batch {options.batch}, prompt {options.prompt}, budget {options.budget}, {options.tokens} steps"
    show(rows, f"{options.model} {options.dtype}, {size}")
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    line = json.dumps({"rows": rows, "options": settings, **origin(options.seed)})
    if options.out:
        options.out.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
