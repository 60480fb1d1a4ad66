"""Puts a trained reasoner into the package, with its card: ``python training/export.py --run training/run``.

The card's accuracy is measured here, with the full cache, on problems that no training draws.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from reasoner import CHARACTERS, Recipe, build_model

from beaconkv.evaluation.tasks.reasoning import SIZES, TASKS
from beaconkv.models import reasoner

CARD = """# Reasoner

A Qwen3 of {parameters:,} parameters ({layers} layers, width {hidden}, {heads} query heads, {kv_heads} KV heads of
{head_dim}, RoPE base {rope_theta:g}, {vocabulary} characters as tokens) that solves synthetic problems in long chains
of reasoning. It serves to test KV cache eviction: each step that it writes can be checked. It cannot do anything
else.

- **Weights**: `model.safetensors`, float32, sha256 `{sha256}`.
- **Tasks**: `beaconkv.evaluation.tasks.reasoning`: {tasks}. Drawn on demand; no other text is used.
- **Training**: `python training/reasoner.py --out training/run`, on the CPU, {steps:,} steps, seed {seed}: random
  strings repeated, then dense lookups in tables, then whole problems of growing length, and a second decay of the rate
  with more searches. Muon on the matrices, AdamW on the rest, bfloat16 matrix products. All settings: `recipe.json`.
  The first 1,100 steps were run with one thread, the others with two, so another run may round differently.
- **Accuracy** with the full cache, greedy, on problems of full size (seed {eval_seed}, not drawn in training):

| task | exact answers | right steps | problems | mean tokens written | longest |
|---|---|---|---|---|---|
{table}

Measured by `{command}`.
"""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="Folder of the training.")
    parser.add_argument("--into", type=Path, default=reasoner.folder())
    parser.add_argument("--samples", type=int, default=100, help="Number of problems of each task.")
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    state = torch.load(arguments.run / "checkpoint.pt", weights_only=True)
    recipe = Recipe(**state["recipe"])
    model = build_model(recipe)
    model.load_state_dict(state["model"])
    reasoner.save(model, arguments.into)
    (arguments.into / "recipe.json").write_text(json.dumps(state["recipe"], indent=2) + "\n")
    command = ["eval", "-m", str(arguments.into), "--task", "reasoning", "--policies", "full", "--budgets", ""]
    command += ["--samples", str(arguments.samples), "--seed", str(arguments.seed)]
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, "-m", "beaconkv", *command, "--out", out], check=True)
        rows = json.loads((Path(out) / "result.json").read_text())["rows"]
        samples = [json.loads(line) for line in (Path(out) / "samples.jsonl").read_text().splitlines()]
    table = "\n".join(
        f"| {row['task']} | {_share(row['accuracy'])} | {100 * row['steps_right']['mean']:.2f}% | {row['problems']} "
        f"| {row['tokens']:.0f} | {max(s['tokens'] for s in samples if row['task'] in (s['task'], 'all'))} |"
        for row in sorted(rows, key=lambda row: [*TASKS, "all"].index(row["task"]))
    )
    card = CARD.format(
        **state["recipe"],
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=len(CHARACTERS),
        sha256=hashlib.sha256((arguments.into / "model.safetensors").read_bytes()).hexdigest(),
        tasks=", ".join(f"{task} ({SIZES[task].steps} steps)" for task in TASKS),
        steps=state["step"],
        eval_seed=arguments.seed,
        table=table,
        command=" ".join(["beaconkv", *command]).replace(str(arguments.into), "reasoner").replace("--budgets  ", ""),
    )
    (arguments.into / "README.md").write_text(card)
    print(table)


def _share(estimate: dict) -> str:
    return f"{100 * estimate['mean']:.1f}% ({100 * estimate['low']:.1f} to {100 * estimate['high']:.1f})"


if __name__ == "__main__":
    main()
