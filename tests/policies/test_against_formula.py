"""Every method's scores equal those of its formula, at each of many evictions, for ragged rows and GQA groups."""

import math

import pytest
import torch

from beaconkv import EvictionSchedule, make_policy, ops, policies
from beaconkv.cache import BoundedLayer
from beaconkv.types import AttentionParams, Rope
from tests.policies.scalar import Method, Row
from tests.reference import rope_half

INV_FREQ, FACTOR, SCALE = [1.0, 0.13], 1.15, 0.7
BUDGET, LEFT, STEPS, PROMPTS = 40, 33, 60, [31, 5, 52]
MEAN = dict(query_pool="mean", group_pool="mean")
SMALL = ":n_recent=5:n_beacon=4"

METHODS = {
    "recent": Method(32),
    "recent:16": Method(16),
    "rpc": Method(32, **MEAN, smooth="avg"),
    "rpc:code": Method(32, **MEAN, smooth="avg", all_heads=True, past_only=True),
    "rpc:code:n_recent=6": Method(6, **MEAN, smooth="avg", all_heads=True, past_only=True),
    "rpc:head_pool=all": Method(32, **MEAN, smooth="avg", all_heads=True),
    "snapkv": Method(32, **MEAN, smooth="avg", kernel=5),
    "snapkv:paper": Method(32, **MEAN, smooth="max", kernel=7),
    "snapkv:code": Method(32, **MEAN, smooth="avg", kernel=5),
    "rkv": Method(8, "none", 0, "mean", "logits", smooth="max", redundancy=0.9, normalise=False),
    "rkv:paper": Method(8, "none", 0, "mean", "logits", smooth="max", redundancy=0.9, normalise=False),
    "rkv:code": Method(8, "none", 0, "mean", "logits", smooth="max", redundancy=0.93, normalise=False, past_only=True),
    "rkv:group_pool=mean:head_pool=all": Method(
        8, "none", 0, "mean", "mean", smooth="max", redundancy=0.9, normalise=False, all_heads=True
    ),
    "rkv:threshold=0.9": Method(
        8, "none", 0, "mean", "logits", smooth="max", redundancy=0.9, threshold=0.9, normalise=False
    ),
    "rkv:redundancy_weight=0": Method(8, "none", 0, "mean", "logits", smooth="max"),
    "tova": Method(1, **MEAN, all_heads=True),
    "tova:head_pool=group": Method(1, **MEAN),
    "h2o": Method(kind="accumulated"),
    "initial_recent": Method(16, "initial", 16),
    "initial_recent" + SMALL: Method(5, "initial", 4),
    "random_history": Method(16, "random", 16),
    "random_history:seed=3" + SMALL: Method(5, "random", 4, seed=3),
    "naive_fps" + SMALL: Method(5, "fps", 4),
    # More beacons than there is history at the first evictions.
    "naive_fps:query_pool=mean:n_recent=20:n_beacon=30": Method(20, "fps", 30, query_pool="mean"),
    "kmeans_centroid" + SMALL: Method(5, "centroid", 4),
    "kmeans_centroid:iterations=1" + SMALL: Method(5, "centroid", 4, iterations=1),
    "kmeans_nearest" + SMALL: Method(5, "nearest", 4),
    "kmeans_nearest:query_pool=mean" + SMALL: Method(5, "nearest", 4, query_pool="mean"),
    "beaconkv:4-28": Method(4, "continual", 28),
    "beaconkv:beacon_scale=0.25" + SMALL: Method(5, "continual", 4, beacon_scale=0.25),
    "beaconkv:beacon_scale=0.5:recent_scale=2:redundancy_weight=0.5" + SMALL: Method(
        5, "continual", 4, redundancy=0.5, beacon_scale=0.5, recent_scale=2.0
    ),
    "kmeans_centroid:beacon_scale=0.25" + SMALL: Method(5, "centroid", 4, beacon_scale=0.25),
    "recent:recent_scale=0.5": Method(32, recent_scale=0.5),
    "beaconkv:mean-max" + SMALL: Method(5, "continual", 4, query_pool="mean"),
    "beaconkv:position_pool=avg:position_kernel=3" + SMALL: Method(5, "continual", 4, smooth="avg", kernel=3),
    "beaconkv:position_pool=max:value_norm=true" + SMALL: Method(5, "continual", 4, smooth="max", value_norm=True),
    "beaconkv:redundancy_weight=0.4" + SMALL: Method(5, "continual", 4, redundancy=0.4),
    "beaconkv:head_pool=all" + SMALL: Method(5, "continual", 4, all_heads=True),
}


def rope_at(positions):
    angle = positions.unsqueeze(-1).double() * torch.tensor(INV_FREQ * 2, dtype=torch.float64)
    return Rope((FACTOR * angle.cos()).float(), (FACTOR * angle.sin()).float(), ops.apply_half)


def turn(vector, position):
    return rope_half(vector, position, INV_FREQ, FACTOR)


def unturned(after, start, dtype):
    """Vectors before RoPE of tokens from ``start`` on, as well as the model's precision can keep them."""
    back = [[rope_half(v, -(start + i), INV_FREQ, 1 / FACTOR) for i, v in enumerate(head)] for head in after]
    return torch.tensor(back, dtype=torch.float64).to(dtype).double().tolist()


def compare(policy, method, group, dtype=torch.float32, seed=0, kv_heads=2, dim=4, prompts=PROMPTS, steps=STEPS):
    """Runs a ragged batch; the largest error of a score relative to the largest score, and the evictions."""
    g = torch.Generator().manual_seed(seed)
    longest, events = max(prompts), []
    total, heads = longest + steps, kv_heads * group
    schedule = EvictionSchedule(BUDGET, LEFT, prefix=2, protect=3)
    layer = BoundedLayer(policy, schedule, on_evict=events.append)
    rows = [Row(method, turn, kv_heads, group, SCALE, BUDGET) for _ in prompts]
    pad = torch.tensor([longest - p for p in prompts])
    real = torch.arange(longest) >= pad.unsqueeze(1)
    stream = torch.randn(len(prompts), heads + kv_heads, total, dim, generator=g)
    stream[:, heads:, ::4] = stream[:, heads:, :1] + 0.2 * stream[:, heads:, ::4]  # keys that repeat each other
    values = torch.randn(len(prompts), kv_heads, total, 3, generator=g).to(dtype)
    error = evictions = 0
    for start, stop in [(0, longest), *((t, t + 1) for t in range(longest, total))]:
        rope = rope_at((torch.arange(start, stop) - pad.unsqueeze(1)).clamp(min=0))
        queries, keys = ops.rotate(stream[:, :, start:stop], rope).to(dtype).split([heads, kv_heads], 1)
        layer.append(keys, values[:, :, start:stop], real if start == 0 and not real.all() else None)
        layer.observe(queries, rope, AttentionParams(SCALE))
        for row, scalar in enumerate(rows):
            skip = max(0, int(pad[row]) - start)
            after, own_keys, own_values = (
                t[row, :, skip:].double().tolist() for t in (queries, keys, values[:, :, start:stop])
            )
            scalar.see(unturned(after, len(scalar.keys[0]), dtype), after, own_keys, own_values)
        for event in events:
            for i, row in enumerate(event.rows):
                expected = rows[row].scores()
                largest = max(abs(s) for head in expected for s in head.values())
                for h in range(kv_heads):
                    assert sorted(event.positions[i, h].tolist()) == rows[row].held[h]
                    for p, score in zip(event.positions[i, h].tolist(), event.scores[i, h].tolist(), strict=True):
                        error = max(error, abs(score - expected[h][p]) / largest)
                rows[row].evicted(event.kept[i].tolist())
                evictions += 1
        events.clear()
    assert layer.slab.positions.diff().min() < 0  # slots are out of order
    return error, evictions


@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("spec", list(METHODS))
def test_scores_equal_the_formula(spec, group):
    error, evictions = compare(make_policy(spec), METHODS[spec], group)
    assert error < 2e-5
    assert evictions > 15


@pytest.mark.parametrize("spec", list(METHODS))
def test_in_bfloat16(spec):
    error, _ = compare(make_policy(spec), METHODS[spec], 2, torch.bfloat16, seed=1)
    assert error < 2e-3


def test_every_method_is_compared():
    """streaming_llm keeps by position alone; full keeps all; beaconkv's plain form has a test of its own."""
    compared = {spec.split(":")[0] for spec in METHODS}
    assert compared | {"full", "streaming_llm"} == set(policies())


def test_a_wrong_formula_is_noticed():
    wrong = {
        "rpc": Method(31, **MEAN, smooth="avg"),
        "snapkv:paper": Method(32, **MEAN, smooth="max", kernel=5),
        "rkv": Method(8, "none", 0, "mean", "max", smooth="max", redundancy=0.9, normalise=False),
        "rkv:code": Method(8, "none", 0, "mean", "logits", smooth="max", redundancy=0.9, normalise=False),
        "random_history" + SMALL: Method(5, "random", 4, seed=1),
        "kmeans_nearest" + SMALL: Method(5, "centroid", 4),
        "naive_fps" + SMALL: Method(5, "nearest", 4),
        "tova": Method(1, **MEAN),
    }
    for spec, method in wrong.items():
        error, _ = compare(make_policy(spec), method, 2)
        assert error > 1e-3, spec


def test_streaming_llm_keeps_the_newest():
    schedule, kept = EvictionSchedule(12, 9, prefix=3, protect=2), []
    layer = BoundedLayer(make_policy("streaming_llm"), schedule, on_evict=lambda e: kept.append(e.kept[0, 0].tolist()))
    for t in range(30):
        rope = rope_at(torch.tensor([[t]]))
        layer.append(torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4))
        layer.observe(torch.randn(1, 1, 1, 4), rope, AttentionParams(1.0))
    assert [k[:3] for k in kept] == [[0, 1, 2]] * len(kept)
    assert [k[3:] for k in kept] == [list(range(k[-1] - 5, k[-1] + 1)) for k in kept]
    assert len(kept) == math.floor((30 - 9) / 3)
