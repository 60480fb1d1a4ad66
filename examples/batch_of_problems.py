"""Solve a padded batch of problems with the full cache and with two bounded ones, and grade the answers.

Run:

    python examples/batch_of_problems.py

The script needs no network and takes about ten seconds. Rows of a padded batch have their own lengths, and
each row is evicted as it would be alone. ``beaconkv eval`` does the same for whole data sets: it resumes, and it
gives intervals.
"""

import torch

import beaconkv
from beaconkv.evaluation import load_tasks
from beaconkv.integrations.transformers import cache_argument

model, tokenizer = beaconkv.models.load("reasoner")

# Two kinds of problems, two of each; their prompts differ in length.
tasks = load_tasks("plan@0.33,search@0.33", samples=2)
problems = [(task, problem) for task in tasks for problem in task.problems]

# `load` sets the padding to the left side, where generation needs it.
inputs = tokenizer([problem.prompt for _, problem in problems], return_tensors="pt", padding=True)
print("prompts of", inputs["attention_mask"].sum(1).tolist(), "tokens")
most_tokens = max(task.max_new_tokens for task in tasks)


def solve(policy: str, budget: int | None) -> None:
    """Write the answers with one method at one budget, and print how many are right."""
    # The `with` block detaches the cache from the model at its end.
    with beaconkv.BoundedCache(model, policy=policy, budget=budget) as cache:
        output = model.generate(**inputs, **{cache_argument(): cache}, max_new_tokens=most_tokens, do_sample=False)
        stats = cache.stats
    grades = []
    for (task, problem), row in zip(problems, output[:, inputs["input_ids"].shape[1] :], strict=True):
        ended = torch.isin(row, torch.tensor(model.generation_config.eos_token_id)).any().item()
        text = tokenizer.decode(row, skip_special_tokens=True).rstrip("\n")  # a line break ends an answer
        grades.append(task.grade(problem, text, not ended))
    right = sum(grade["correct"] for grade in grades)
    steps = sum(grade["steps_right"] for grade in grades) / len(grades)
    name = policy if budget is None else f"{policy} at {budget}"
    print(
        f"{name:20} {right} of {len(grades)} answers exact, {steps:4.0%} of the steps right, "
        f"{stats.evictions:2} evictions, at most {stats.peak_entries:3} entries, {stats.kv_bytes / 2**20:.1f} MiB"
    )


solve("full", None)  # nothing is evicted: the reference
solve("beaconkv", 256)
solve("streaming_llm", 256)
