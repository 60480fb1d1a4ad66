"""Write an eviction policy of your own, and use it by name like the built-in ones.

Run:

    python examples/own_policy.py

The script needs no network and takes a few seconds. docs/adding_a_policy.md describes policies that remember
queries, and what a policy in the package needs besides.
"""

from dataclasses import dataclass

from torch import Tensor

import beaconkv
from beaconkv import CacheView, EvictionEvent, EvictionPolicy
from beaconkv.evaluation import load_tasks
from beaconkv.integrations.transformers import cache_argument
from beaconkv.policies import LayerState


# The class statement registers the name; a second class of the same name is an error.
@dataclass(frozen=True)  # a policy is frozen settings: what a method remembers of a text lives in a LayerState
class NormAndAge(EvictionPolicy, name="norm_and_age"):
    """Keep the entries whose keys are short, and newer entries before older ones.

    Attributes:
        age_weight: Weight of an entry's age in its score; 0 scores the norm alone.
    """

    age_weight: float = 0.1

    source = "this example"
    per_head = True  # every KV head is scored by itself, so that all layers may take their decode steps together

    def __post_init__(self) -> None:
        if not self.age_weight >= 0:
            raise ValueError(f"norm_and_age: age_weight must be at least 0, got {self.age_weight!r}")

    def score(self, view: CacheView, state: LayerState) -> Tensor:
        """Return one score per entry, (rows, KV heads, entries): higher scores stay."""
        norms = view.keys.float().norm(dim=-1)
        norms = norms / norms.amax(-1, keepdim=True)
        positions = view.positions.float()
        ages = 1 - positions / positions.amax(-1, keepdim=True).clamp(min=1)
        return -norms - self.age_weight * ages


def count_dropped(event: EvictionEvent) -> None:
    """Called after each eviction of each layer."""
    dropped[event.layer] = dropped.get(event.layer, 0) + event.dropped.numel()


model, tokenizer = beaconkv.models.load("reasoner")
problem = load_tasks("plan@0.33", samples=1)[0].problems[0]
inputs = tokenizer(problem.prompt, return_tensors="pt")

# By name, with a setting behind a colon: the same text works in `beaconkv.parse_policy` and in an evaluation.
for policy in ("norm_and_age", "norm_and_age:age_weight=0", "beaconkv"):
    dropped: dict[int, int] = {}
    cache = beaconkv.BoundedCache(model, policy=policy, budget=192, on_evict=count_dropped)
    output = model.generate(**inputs, **{cache_argument(): cache}, max_new_tokens=300, do_sample=False)
    held = cache.positions(0)[0, 0]
    print(f"{policy:26} {cache.stats.evictions} evictions, {sum(dropped.values()):,} entries dropped in all layers")
    print(f"{'':26} layer 0, KV head 0 holds {(held < inputs['input_ids'].shape[1]).sum()} tokens of the prompt")

# Wrong settings are refused with the offender and the choices.
try:
    beaconkv.make_policy("norm_and_age", age=1)
except ValueError as error:
    print("error:", error)
