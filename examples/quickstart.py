"""A model that thinks in a cache of 256 entries per layer and head, however long it writes.

python examples/quickstart.py
"""

from beaconkv import BoundedCache
from beaconkv.integrations.transformers import cache_argument
from beaconkv.models import load

model, tokenizer = load("smollm2-135m")  # or a hub name, or a local folder

question = "Plan a birthday party for ten children, step by step. Explain every decision at length."
chat = [{"role": "user", "content": question}]
text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)

cache = BoundedCache(model, policy="beaconkv", budget=256)
# The argument is called `cache` in new releases of transformers and `past_key_values` in older ones.
out = model.generate(**inputs, **{cache_argument(): cache}, max_new_tokens=600, do_sample=False)

print(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print(cache.stats)
print("layer 0, head 0 still holds the tokens", cache.positions(0)[0, 0].tolist())
