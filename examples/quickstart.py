"""Generate with a bounded cache: a model writes some hundred tokens and never holds more than 256 entries.

Run:

    python examples/quickstart.py

The script needs no network and takes a few seconds. It uses the small model that comes with the package; the name of
any other decoder works in its place, for example ``load("Qwen/Qwen3-0.6B")`` or a local folder.
"""

import beaconkv
from beaconkv.evaluation import load_tasks
from beaconkv.integrations.transformers import cache_argument

BUDGET = 256

model, tokenizer = beaconkv.models.load("reasoner")

# The bundled reasoner solves synthetic problems: rules, facts and a plan in, a chain of small steps out.
task = load_tasks("plan@0.5", samples=1)[0]
inputs = tokenizer(task.problems[0].prompt, return_tensors="pt")

# The two lines that matter. A cache serves one text: make a new one for the next prompt.
cache = beaconkv.BoundedCache(model, policy="beaconkv", budget=BUDGET)
# New releases of transformers call the argument `cache`, older ones `past_key_values`.
output = model.generate(**inputs, **{cache_argument(): cache}, max_new_tokens=600, do_sample=False)

prompt_length = inputs["input_ids"].shape[1]
print("prompt: ", task.problems[0].prompt[:100], "...")
print("written:", tokenizer.decode(output[0, prompt_length:], skip_special_tokens=True)[:100], "...")

stats = cache.stats
print(f"{output.shape[1]} tokens in all, at most {stats.peak_entries} entries per layer and KV head")
print(f"{stats.evictions} evictions; keys and values take {stats.kv_bytes:,} bytes (formula: {stats.formula_bytes:,})")

# Every layer and KV head keeps its own choice of tokens: (rows, KV heads, entries).
print("layer 0, KV head 0 still holds the tokens", cache.positions(0)[0, 0].tolist()[:16], "...")
