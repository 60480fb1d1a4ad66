"""A recorded run made of random numbers that fit each other."""

import numpy as np

NOT_DROPPED = 2**31 - 1
WORDS = [
    "So",
    " the",
    " value",
    " of",
    " x",
    " is",
    " then",
    " 12",
    ",",
    " and",
    " we",
    " check",
    ".",
    " Wait",
    "\n",
    "\n\n",
]


def run(length=180, heads=5, targets=6, policies=2, layers=(0, 2, 3), num_heads=8, num_kv_heads=4, seed=0):
    """Arguments of ``render_page``; with ``policies`` of them, the last without coverage."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(layers) * num_heads, heads, replace=False)
    frequency = rng.beta(0.6, 3, (len(layers), num_heads)).astype("f4")
    frequency[0, 0] = np.nan
    shown = []
    for cell in chosen.tolist():
        row, head = divmod(cell, num_heads)
        share = float(np.nan_to_num(frequency[row, head]))
        kv_head = head // (num_heads // num_kv_heads)
        shown.append({"layer": layers[row], "head": head, "kv_head": kv_head, "share": share})
    is_global = rng.random((heads, length)) < 0.25
    looked = look(rng, is_global, targets)
    weights = np.sort(rng.dirichlet(np.ones(targets + 2), (heads, length)).astype("f4"))[..., : -targets - 1 : -1]
    distance = np.where(looked >= 0, np.arange(length)[:, None] - looked, 0).mean(-1)
    return {
        "title": "A random run",
        "subtitle": f"{length:,} tokens, none of which means anything",
        "facts": ["The heads that look far back are few.", "A budget of 64 loses little."],
        "tokens": [WORDS[i] for i in rng.integers(0, len(WORDS), length)],
        "prompt_length": length // 5,
        "local_distance": length // 8,
        "top_keys": targets,
        "num_layers": 4,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "layers": list(layers),
        "frequency": frequency,
        "heads": shown,
        "is_global": is_global.astype("u1"),
        "distance": distance.astype("f4"),
        "targets": looked,
        "weights": weights,
        "policies": [
            policy(rng, i, i < policies - 1, length, heads, len(layers), num_kv_heads) for i in range(policies)
        ],
    }


def look(rng, is_global, targets):
    """(n, T, K): near for local queries, anywhere for global ones; different, and fewer at the start."""
    heads, length = is_global.shape
    looked = np.full((heads, length, targets), -1, "i4")
    for i in range(heads):
        for t in range(length):
            reach = t + 1 if is_global[i, t] else min(t + 1, 16)
            some = min(reach, targets)
            looked[i, t, :some] = t - rng.choice(reach, some, replace=False)
    return looked


def policy(rng, number, covered, length, heads, layers, num_kv_heads):
    """Evicts whatever comes to mind, every 16 tokens."""
    steps = np.arange(length // 4, length - 1, 16, dtype="i4")
    dropped = np.full((layers, num_kv_heads, length), NOT_DROPPED, "i4")
    for step in steps:
        alive = (dropped == NOT_DROPPED) & (np.arange(length) <= step)
        dropped[alive & (rng.random(dropped.shape) < 0.2 + 0.1 * number)] = step
    coverage = rng.uniform(0.2, 1, (heads, length)).astype("f4")
    coverage[:, : length // 4 + 1] = np.nan
    return {
        "label": ["beaconkv", "snapkv", "h2o"][number],
        "budget": 64,
        "colour": ["#D55E00", "#332288", "#CC79A7"][number],
        "summary": [["attention lost", f"{3 + number} %"], [f"only of {number}", "yes"]],
        "dropped": dropped,
        "steps": steps,
        "lost": rng.uniform(0, 0.2, (heads, steps.size + 1)).astype("f4"),
        "coverage": coverage if covered else None,
    }
