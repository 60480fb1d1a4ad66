"""A check that no memory grows: bytes of the cache and of the process over many steps.

python benchmarks/steady.py --tokens 20000
"""

from __future__ import annotations

import argparse
import gc

import torch
from common import Decoder, build_model, new_cache, refuse_if_wrong, report
from rich.console import Console
from rich.progress import track

COLUMNS = {
    "tokens": "tokens",
    "evictions": "evictions",
    "cache_bytes": "cache bytes",
    "formula_bytes": "by the formula",
    "state_bytes": "state bytes",
    "resident_kb": "resident kB",
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--policy", default="beaconkv")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--stagger", type=int, default=1)
    parser.add_argument("--out", help="path of a file the JSON line is added to")
    return parser.parse_args()


def resident_kb() -> int | None:
    """Resident memory of this process, where the system reports it."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    except OSError:
        return None


@torch.inference_mode()
def measure(options: argparse.Namespace) -> list[dict]:
    model = build_model(options.model, options.dtype, options.device)
    refuse_if_wrong(model)
    decoder = Decoder(model, new_cache(options.policy, model, options.budget, options.stagger))
    generator = torch.Generator().manual_seed(0)
    rows, every = [], options.tokens // 10
    for token in track(range(1, options.tokens + 1), "steps", console=Console(stderr=True)):
        ids = torch.randint(3, model.config.vocab_size, (options.batch, 1), generator=generator)
        decoder.feed(ids.to(model.device))
        if token % every == 0:
            gc.collect()
            stats = decoder.cache.stats
            rows.append(
                {
                    "tokens": token,
                    "evictions": stats.evictions,
                    "cache_bytes": stats.peak_kv_bytes,
                    "formula_bytes": stats.formula_bytes,
                    "state_bytes": stats.state_bytes,
                    "resident_kb": resident_kb(),
                }
            )
    decoder.cache.check_integrity()
    return rows


def main() -> None:
    options = parse()
    rows = measure(options)
    report(
        f"steady: {options.model}, {options.policy}, budget {options.budget}", rows, COLUMNS, vars(options), options.out
    )


if __name__ == "__main__":
    main()
