"""Record what a model's attention sees, replay two methods over it, and write a page to explore both.

Run:

    python examples/trace_and_page.py [folder]

The script needs the extra "insight", no network, and some seconds. It writes ``chain.trace`` and ``page.html`` to
the folder (default: results/example). The commands ``beaconkv trace record``, ``replay`` and ``report`` do the same
for any model.
"""

import sys
from pathlib import Path

import beaconkv
from beaconkv.analysis.diagnosis import diagnose
from beaconkv.analysis.losses import compare_policies
from beaconkv.analysis.recorder import record
from beaconkv.analysis.report.data import page_data
from beaconkv.analysis.report.page import render_page
from beaconkv.evaluation import load_tasks
from beaconkv.integrations.transformers import cache_argument

BUDGET = 192
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/example")
folder.mkdir(parents=True, exist_ok=True)

# 1. The model solves a problem with nothing evicted.
model, tokenizer = beaconkv.models.load("reasoner")
prompt = load_tasks("plan@0.25", samples=1)[0].problems[0].prompt
inputs = tokenizer(prompt, return_tensors="pt")
with beaconkv.BoundedCache(model, policy="full") as cache:
    ids = model.generate(**inputs, **{cache_argument(): cache}, max_new_tokens=400, do_sample=False)[0].tolist()

# 2. It reads its own text again, and the queries and keys of its attention layers go to a file.
trace = record(model, tokenizer, ids, inputs["input_ids"].shape[1], folder / "chain.trace", name="reasoner")
print(f"{trace.path}: {len(trace)} tokens, {len(trace.info.layers)} layers")

# 3. Two methods evict on the recorded text. What later queries attended to is known, so each loss can be measured.
outcomes = compare_policies(trace, [("beaconkv", BUDGET), ("recent", BUDGET)])
for outcome in outcomes:
    row = outcome.summary()
    print(
        f"{row['policy']:10} budget {row['budget']}: {row['evictions']} evictions, "
        f"{row['lost']:.1%} of the attention lost; the best possible eviction loses {row['oracle']:.1%}"
    )

# 4. One HTML file without any network access: open it in a browser. The model is small, so few keys count as strong.
diagnosis = diagnose(trace, top_keys=8, distance=100)
page = folder / "page.html"
page.write_text(render_page(page_data(trace, diagnosis, outcomes)), encoding="utf-8")
print(f"{page}: {page.stat().st_size / 2**20:.1f} MiB")
