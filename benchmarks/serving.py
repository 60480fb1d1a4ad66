"""vLLM against itself with a bounded cache, in the same memory: requests per second and latency.

    python benchmarks/serving.py                                                          SmolLM2-135M on a CPU
    python benchmarks/serving.py --model random:qwen3-4b --dtype bfloat16 --blocks 0 ...  weights of that size, on a GPU

Each engine in turn, several rounds, gets the same requests from the same number of clients, each of which sends the
next request as soon as it has its answer. Nothing is reported if the engine with beaconkv's worker and no settings
writes other tokens than vLLM's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import SHAPES, report
from rich.console import Console
from rich.progress import Progress

from beaconkv.integrations.vllm import WORKER

STOCK = "vllm"
COLUMNS = {
    "engine": "method",
    "requests_per_second": "requests/s",
    "tokens_per_second": "tokens/s",
    "latency_p50": "latency s p50",
    "latency_p99": "p99",
    "first_token_p50": "first token p50",
    "preemptions": "preempted",
    "evictions": "evictions",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="smollm2-135m", help="name of the model: bundled, a folder, a hub name, or random:NAME"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--policies", default="beaconkv", help="methods, separated by commas")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=72, help="number of blocks of the cache; 0: as many as fit")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--batched-tokens", type=int, default=256, help="maximum number of tokens of one step of vLLM")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--prompt", type=int, default=120, help="number of tokens of a prompt, about")
    parser.add_argument("--tokens", type=int, default=600, help="number of tokens of an answer, about")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="whether to run without compilation and graphs")
    parser.add_argument("--out", type=Path, help="path of a file that the JSON line is added to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def model_folder(name: str, into: str) -> tuple[str, dict]:
    """A folder for vLLM, and its further arguments. ``random:NAME``: a config alone, and random weights."""
    if not name.startswith("random:"):
        from beaconkv.models.load import resolve

        return resolve(name)[0], {}
    from transformers import AutoConfig

    shape = dict(SHAPES[name.removeprefix("random:")], max_position_embeddings=65536)
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    config.save_pretrained(into)
    return into, {"load_format": "dummy"}


def requests_of(args: argparse.Namespace, model: str) -> list[tuple[list[int], int]]:
    """Pairs (prompt, tokens of the answer): half to one and a half times the numbers given."""
    from transformers import AutoConfig

    rng = random.Random(args.seed)
    words = min(1000, AutoConfig.from_pretrained(model).get_text_config().vocab_size)

    def about(number: int) -> int:
        return rng.randrange(number // 2, number * 3 // 2 + 1)

    drawn = [(about(args.prompt), about(args.tokens)) for _ in range(args.requests)]
    return [([rng.randrange(3, words) for _ in range(prompt)], tokens) for prompt, tokens in drawn]


def run_child(job: dict) -> None:
    """Run one engine: an answer to check, then the load."""
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**job["engine"]))

    async def ask(name: str, prompt: list[int], tokens: int) -> tuple[list[int], float, float]:
        """Number of tokens, seconds until the first and until the last."""
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start, first, written = time.perf_counter(), None, []
        async for output in engine.generate({"prompt_token_ids": prompt}, sampling, name):
            written = list(output.outputs[0].token_ids)
            first = first or time.perf_counter() - start
        return written, first, time.perf_counter() - start

    async def load() -> dict:
        waiting = list(enumerate(job["requests"]))[::-1]
        check = [(await ask(f"check{n}", p, min(t, 48)))[0] for n, (p, t) in enumerate(job["requests"][:2])]
        done = []

        async def client() -> None:
            while waiting:
                number, (prompt, tokens) = waiting.pop()
                written, first, last = await ask(str(number), prompt, tokens)
                done.append((len(written), first, last))

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(job["clients"])))
        seconds = time.perf_counter() - start
        result = {"check": check, "seconds": seconds, "done": done}
        result["blocks"] = engine.vllm_config.cache_config.num_gpu_blocks
        if job["bounded"]:
            stats = (await engine.collective_rpc("bounded_stats"))[0]
            result["bounded"] = {name: value for name, value in stats.items() if name != "finished"}
        return result

    result = asyncio.run(load())
    from prometheus_client import REGISTRY

    preempted = [m for metric in REGISTRY.collect() for m in metric.samples if m.name == "vllm:num_preemptions_total"]
    result["preemptions"] = sum(sample.value for sample in preempted)
    Path(job["result"]).write_text(json.dumps(result))
    engine.shutdown()


def run(job: dict, folder: str) -> dict:
    """Run an engine in a process of its own; if it fails, end the program with its output."""
    job = {**job, "result": f"{folder}/result.json"}
    done = subprocess.run([sys.executable, __file__, "--child", json.dumps(job)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"an engine failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return json.loads(Path(job["result"]).read_text())


def summary(name: str, runs: list[dict]) -> dict:
    """Summary of all rounds of one engine."""
    lasts = sorted(last for r in runs for _, _, last in r["done"])
    firsts = sorted(first for r in runs for _, first, _ in r["done"])
    seconds, count = sum(r["seconds"] for r in runs), len(lasts)
    return {
        "engine": name,
        "requests_per_second": count / seconds,
        "tokens_per_second": sum(tokens for r in runs for tokens, _, _ in r["done"]) / seconds,
        "latency_p50": statistics.median(lasts),
        "latency_p99": lasts[min(count - 1, int(0.99 * count))],
        "first_token_p50": statistics.median(firsts),
        "preemptions": sum(r["preemptions"] for r in runs),
        "blocks": runs[0]["blocks"],
        "evictions": sum(r.get("bounded", {}).get("evictions", 0) for r in runs),
        "state_bytes": max(r.get("bounded", {}).get("state_bytes", 0) for r in runs),
    }


def main() -> None:
    args = arguments()
    if args.child:
        run_child(json.loads(args.child))
        return
    with tempfile.TemporaryDirectory() as folder:
        model, extra = model_folder(args.model, folder)
        common = dict(
            model=model,
            dtype=args.dtype,
            max_model_len=args.max_model_len,
            block_size=args.block_size,
            max_num_batched_tokens=args.batched_tokens,
            max_num_seqs=args.clients,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            enforce_eager=args.eager,
            num_gpu_blocks_override=args.blocks + 1 if args.blocks else None,
            disable_log_stats=False,
            **extra,
        )
        engines = {STOCK: ({}, False)}
        for policy in args.policies.split(","):
            settings = {"beaconkv": {"policy": policy, "budget": args.budget}}
            engines[f"{policy}, budget {args.budget}"] = ({"worker_cls": WORKER, "additional_config": settings}, True)
        job = {"requests": requests_of(args, model), "clients": args.clients}
        runs: dict[str, list[dict]] = {name: [] for name in engines}
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("with beaconkv's worker and no settings", total=len(engines) * args.rounds + 1)
            off = run({**job, "engine": common | {"worker_cls": WORKER}, "bounded": False, "clients": 0}, folder)
            progress.advance(bar)
            for _ in range(args.rounds):
                for name, (own, bounded) in engines.items():
                    progress.update(bar, description=name)
                    runs[name].append(run({**job, "engine": common | own, "bounded": bounded}, folder))
                    progress.advance(bar)
                    if name == STOCK and runs[name][-1]["check"] != off["check"]:
                        sys.exit("nothing is reported: with beaconkv's worker and no settings vLLM writes other tokens")
    rows = [summary(name, runs[name]) for name in engines]
    title = (
        f"serving: {args.model} {args.dtype}, {args.requests} requests of about {args.prompt} + {args.tokens} tokens, "
        f"{args.clients} clients, {rows[0]['blocks'] - 1} blocks of {args.block_size}, {args.rounds} rounds"
    )
    report(title, rows, COLUMNS, vars(args) | {"out": None}, args.out)


if __name__ == "__main__":
    main()
