"""Several bounded caches in one forward pass; that each does what it does alone: tests/evaluation/fidelity."""

from beaconkv import BoundedCache
from beaconkv.instruments import SideBySide
from tests.tiny import greedy, prompt, tiny


def test_caches_side_by_side_take_their_rows():
    model, inputs = tiny("qwen3"), prompt(20, 20)
    caches = SideBySide([BoundedCache(model, budget=400), BoundedCache(model, "streaming_llm", 44)])
    assert greedy(model, inputs, caches).shape == (2, 40)
