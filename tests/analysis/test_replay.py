"""A replay drops what a live cache drops; what that costs is what a slow direct computation says."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import BoundedCache, EvictionSchedule, make_policy, ops, policies
from beaconkv.analysis.demand import find_demand, find_loss
from beaconkv.analysis.oracle import least_loss, oracle
from beaconkv.analysis.replay import NOT_DROPPED, replay
from beaconkv.analysis.trace import Trace, TraceInfo
from beaconkv.analysis.trace_file import TraceWriter
from beaconkv.cache import BoundedLayer, eviction_steps
from beaconkv.integrations.transformers.call import LayerCall
from tests.analysis.traces import random_ids, tiny_trace
from tests.tiny import tiny

EVICTING = [name for name, policy in policies().items() if policy.evicts]
SPECS = [
    *EVICTING,
    "rkv:redundancy_weight=0.5",
    "snapkv:paper",
    "beaconkv:4-28",
    "beaconkv:soft",
    "beaconkv:mean-mean:redundancy_weight=0.3",
]
SMALL = dict(prefix=2, protect=6)


def live_events(model, ids, prompt, policy, budget, **schedule):
    """What a live cache evicts when it is fed one token at a time, by (layer, step): positions kept and dropped."""
    events = {}

    def keep(event):
        events[event.layer, event.now[0]] = (event.kept[0], event.dropped[0])

    with BoundedCache(model, policy, budget, on_evict=keep, **schedule) as cache, torch.no_grad():
        for part in torch.tensor([ids]).split([prompt, *[1] * (len(ids) - prompt)], dim=1):
            model(part, past_key_values=cache, use_cache=True)
    return events


def replayed_events(trace, policy, budget, **schedule):
    events = {}

    def keep(event):
        events[event.layer, event.now[0]] = (event.kept[0], event.dropped[0])

    return replay(trace, policy, budget, on_evict=keep, **schedule), events


def same(found, expected):
    assert found.keys() == expected.keys()
    for key in expected:
        for a, b in zip(found[key], expected[key], strict=True):
            assert torch.equal(a, b), key


@pytest.mark.parametrize("family", ["llama", "qwen3-yarn", "glm4", "smollm3"])
@pytest.mark.parametrize("policy", SPECS)
def test_replay_equals_live_in_every_layer(policy, family, tmp_path, monkeypatch):
    """A trace of what a live bounded run computed, replayed: every eviction of every layer is the same."""
    model, ids, prompt = tiny(family), random_ids(110), 23
    seen = {}
    attend = LayerCall.attend

    def watch(self, module, query, key, *rest, **kwargs):
        own = seen.setdefault(self.host.layer.index, ([], [], [], []))
        for kept, new in zip(own, (key.clone(), query.clone(), self.rope, kwargs["scaling"]), strict=True):
            kept.append(new)
        return attend(self, module, query, key, *rest, **kwargs)

    monkeypatch.setattr(LayerCall, "attend", watch)
    expected = live_events(model, ids, prompt, policy, 40, **SMALL)
    monkeypatch.undo()
    assert len(expected) >= 10 * len(seen)

    rotary = tiny_trace(tmp_path, family, 12, 3).info.rotary
    first = seen[0]
    info = TraceInfo(
        model=family,
        num_tokens=110,
        prompt_length=prompt,
        layers=sorted(seen),
        kv_heads=[0, 1],
        group=3,
        dim=first[0][0].shape[-1],
        value_dim=1,
        rope_dim=first[2][0].cos.shape[-1],
        dtype="float32",
        has_values=False,
        rotary=rotary,
        rope_of=[0] * len(seen),
        scaling=[own[3][0] for own in seen.values()],
        softcap=[None] * len(seen),
        has_sinks=False,
        pieces=[""] * 110,
    )
    path = tmp_path / "live.trace"
    with TraceWriter(path, info.layout(), info.to_json()) as writer:
        writer.tensors["tokens"].copy_(torch.tensor(ids))
        for name in ("cos", "sin"):
            writer.tensors[f"{name}.0"].copy_(torch.cat([getattr(r, name)[0] for r in first[2]]))
        for index, own in seen.items():
            writer.tensors[f"keys.{index}"].copy_(torch.cat(own[0], dim=2)[0])
            writer.tensors[f"queries.{index}"].copy_(torch.cat(own[1], dim=2)[0])
    result, found = replayed_events(Trace(path), policy, 40, **SMALL)
    same(found, expected)
    assert result.steps == eviction_steps(result.schedule, prompt, 110)
    for (layer, step), (_, dropped) in expected.items():
        number = info.layers.index(layer)
        for head in range(2):
            assert (result.dropped[number, head] == step).nonzero().flatten().tolist() == dropped[head].tolist()


@pytest.mark.parametrize("policy", EVICTING)
def test_replay_of_a_recording_equals_live_in_the_first_layer(policy, tmp_path):
    """Its queries and keys do not depend on what is cached, so nothing but the recorder stands between the two."""
    trace = tiny_trace(tmp_path, length=100, prompt=18, chunk=1)
    expected = live_events(tiny(), trace.tokens, 18, policy, 40, **SMALL)
    _, found = replayed_events(trace, policy, 40, layers=[0], **SMALL)
    same(found, {key: value for key, value in expected.items() if key[0] == 0})


def test_layers_with_sinks_are_replayed_each_with_its_own(tmp_path):
    trace = tiny_trace(tmp_path, "gpt-oss", 100, 18)
    assert trace.info.has_sinks
    assert len(trace.info.layers) > 1
    whole, _ = replayed_events(trace, "beaconkv", 40, **SMALL)
    for number, layer in enumerate(trace.info.layers):
        alone, _ = replayed_events(trace, "beaconkv", 40, layers=[layer], **SMALL)
        assert torch.equal(alone.dropped[0], whole.dropped[number])


@settings(max_examples=60)
@given(data=st.data())
def test_eviction_steps_are_those_of_a_layer(data):
    prompt = data.draw(st.integers(1, 60))
    schedule = data.draw(
        st.sampled_from(
            [
                EvictionSchedule(20, prefix=2, protect=4),
                EvictionSchedule(20, 19, prefix=0, protect=0),
                EvictionSchedule(24, 12, prefix=1, protect="half", growth=3),
                EvictionSchedule(16, 10, prefix=0, protect=2, scope="output"),
            ]
        )
    )
    tokens = prompt + data.draw(st.integers(0, 60))
    assert eviction_steps(schedule, prompt, tokens) == counted(schedule, prompt, tokens)


def counted(schedule, prompt, tokens):
    steps = []
    layer = BoundedLayer(make_policy("streaming_llm"), schedule, on_evict=lambda event: steps.append(event.now[0]))
    entries = torch.randn(1, 1, tokens, 2)
    rope = trivial_rope(tokens)
    for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, tokens))]:
        layer.append(entries[:, :, start:stop], entries[:, :, start:stop])
        layer.observe(entries[:, :, start:stop], rope.steps(start, stop), None)
    return steps


def trivial_rope(tokens):
    from beaconkv.types import Rope

    return Rope(torch.ones(1, tokens, 2), torch.zeros(1, tokens, 2), ops.apply_half)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def trace(request, tmp_path_factory):
    return tiny_trace(tmp_path_factory.mktemp("traces"), request.param, 90, 15)


def direct_weights(trace, layer):
    """(H, T, T) attention, from the formula."""
    queries, keys = trace.queries(layer)[0].double(), trace.keys(layer)[0].double()
    keys = keys.repeat_interleave(trace.info.group, dim=0)
    logits = queries @ keys.transpose(1, 2) * trace.params(layer).scaling
    hidden = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1)
    return logits.masked_fill(hidden, -torch.inf).softmax(-1)


def test_demand_and_loss_equal_slow_loops(trace):
    result = replay(trace, "recent:16", 40, **SMALL)
    group, top = trace.info.group, 5
    events = result.event_of()
    for number, layer in enumerate(trace.info.layers):
        demand = find_demand(trace, layer, result.steps, top)
        loss = find_loss(demand, events[number])
        weights = direct_weights(trace, layer)
        stretches = len(result.steps) + 1
        lost = torch.zeros(trace.info.num_heads, stretches, dtype=torch.float64)
        queries = [0] * stretches
        hits, total = torch.zeros(2, stretches), torch.zeros(2, stretches)
        later, wanted = torch.zeros(2, 90, dtype=torch.float64), torch.zeros(2, 90)
        for t in range(90):
            stretch = sum(step < t for step in result.steps)
            queries[stretch] += 1
            for head, j in itertools.product(range(trace.info.num_heads), range(t + 1)):
                kv = head // group
                is_gone = result.dropped[number, kv, j] < t
                best = weights[head, t, : t + 1].topk(min(top, t + 1)).indices.tolist()
                total[kv, stretch] += j in best
                hits[kv, stretch] += j in best and not is_gone
                if is_gone:
                    lost[head, stretch] += weights[head, t, j]
                    later[kv, j] += weights[head, t, j]
                    wanted[kv, j] += j in best
        assert demand.queries.tolist() == queries
        torch.testing.assert_close(
            loss.lost.double(), lost / torch.tensor(queries), atol=1e-5, rtol=1e-4, equal_nan=True
        )
        torch.testing.assert_close(loss.recall, hits / total, atol=1e-6, rtol=0, equal_nan=True)
        torch.testing.assert_close(loss.later_mass.double(), later, atol=1e-4, rtol=1e-4)
        assert torch.equal(loss.later_wanted, wanted.long())
        if number == 0:
            assert loss.lost.nan_to_num().max() > 0.02


def test_coverage_is_the_best_cosine_to_the_observation_queries(trace):
    """At each eviction the last 16 queries, before RoPE, are all that `recent:16` scores with."""
    result = replay(trace, "recent:16", 40, **SMALL)
    for number, layer in enumerate(trace.info.layers):
        queries = torch.nn.functional.normalize(trace.queries_before_rope(layer)[0], dim=-1)
        for t in range(90):
            before = [step for step in result.steps if step < t]
            if not before:
                assert result.coverage[number, :, t].isnan().all()
                continue
            observed = queries[:, before[-1] - 15 : before[-1] + 1]
            expected = (observed @ queries[:, t].unsqueeze(-1)).amax((1, 2))
            torch.testing.assert_close(result.coverage[number, :, t], expected, atol=1e-5, rtol=1e-4)


def test_more_observation_queries_cover_more(trace):
    """The last 16 are among the last 32, and among what BeaconKV observes."""
    few = replay(trace, "recent:16", 40, **SMALL).coverage
    for policy in ("recent:32", "beaconkv"):
        more = replay(trace, policy, 40, **SMALL).coverage
        known = ~few.isnan()
        assert (more[known] >= few[known] - 1e-5).all()
        assert (more[known] > few[known] + 1e-3).any()


@pytest.mark.parametrize("policy", ["streaming_llm", "h2o"])
def test_policies_without_observation_queries_have_no_coverage(trace, policy):
    assert replay(trace, policy, 40, **SMALL).coverage.isnan().all()


@pytest.mark.parametrize("policy", EVICTING)
def test_no_policy_beats_the_bound(trace, policy):
    result = replay(trace, policy, 40, **SMALL)
    group = trace.info.group
    for number, layer in enumerate(trace.info.layers):
        demand = find_demand(trace, layer, result.steps)
        lost = find_loss(demand, result.event_of()[number]).lost.view(-1, group, len(result.steps) + 1).mean(1)
        bound = least_loss(demand, result.schedule, 15)
        assert torch.equal(lost.isnan(), bound.isnan())
        assert (lost - bound).nan_to_num().min() >= -1e-6
        best = find_loss(demand, oracle(demand, result.schedule, 15)).lost
        assert best.nanmean() <= lost.nanmean() + 1e-6, "the oracle knows the future"


def brute_force(demand, schedule, prompt, tokens):
    """The least summed loss of one head over every way to evict, by trying them all."""
    mass = demand.of_group()[0]

    def best(number, held):
        if number == len(demand.steps):
            return 0.0
        step = demand.steps[number]
        held = held | set(range(demand.steps[number - 1] + 1 if number else 0, step + 1))
        order = sorted(held)
        fixed = order[: schedule.prefix_for(prompt)] + order[len(order) - schedule.protect :]
        free = [j for j in order if j not in fixed]
        least = float("inf")
        for chosen in itertools.combinations(free, schedule.kept_for(prompt, number) - len(fixed)):
            kept = set(fixed) | set(chosen)
            gone = [j for j in range(step + 1) if j not in kept]
            here = mass[number + 1, gone].sum().item()
            if here < least:
                least = min(least, here + best(number + 1, kept))
        return least

    return best(0, set())


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_lies_between_bound_and_oracle(seed, tmp_path):
    trace = tiny_trace(tmp_path, "llama", 22, 3, seed)
    schedule = EvictionSchedule(8, 5, prefix=1, protect=2)
    steps = eviction_steps(schedule, 3, 22)
    assert len(steps) >= 4
    demand = find_demand(trace, 0, steps)
    kept = oracle(demand, schedule, 3)
    for number, step in enumerate(steps):
        gone = (kept > 0) & (kept <= number + 1)
        assert ((~gone[:, : step + 1]).sum(1) == 5).all()
        assert not gone[:, 0].any()
    scale = demand.queries * 3  # queries of a stretch, heads of a group
    reached = (find_loss(demand, kept).lost.view(2, 3, -1).mean(1) * scale)[0].nansum().item()
    bound = (least_loss(demand, schedule, 3) * scale)[0].nansum().item()
    optimum = brute_force(demand, schedule, 3, 22)
    assert bound <= optimum + 1e-4
    assert optimum <= reached + 1e-4
    assert reached <= optimum * 1.2 + 1e-3, "the greedy oracle is near the optimum"


def test_what_cannot_be_replayed_is_refused(trace):
    for arguments, message in (
        (("full",), "evicts nothing"),
        (("beaconkv",), "needs a budget"),
        (("beaconkv:value_norm=true", 40), "recorded without"),
        (("nonsense", 40), "unknown policy"),
    ):
        with pytest.raises(ValueError, match=message):
            replay(trace, *arguments, **SMALL)
    with pytest.raises(ValueError, match="prefill_chunk"):
        replay(trace, "beaconkv", 40, prefill_chunk=4, **SMALL)
    with pytest.raises(ValueError, match="layer 7 was not recorded"):
        replay(trace, "beaconkv", 40, layers=[7], **SMALL)


def test_values_are_used_where_they_were_recorded(tmp_path):
    trace = tiny_trace(tmp_path, length=100, values=True, chunk=1)
    policy = "beaconkv:value_norm=true"
    expected = live_events(tiny(), trace.tokens, 20, policy, 40, **SMALL)
    _, found = replayed_events(trace, policy, 40, layers=[0], **SMALL)
    same(found, {key: value for key, value in expected.items() if key[0] == 0})


def test_never_means_that_an_entry_stayed(trace):
    result = replay(trace, "streaming_llm", 40, prefix=4, protect=8)
    kept = (result.dropped == NOT_DROPPED).sum(-1)
    last = len(trace) - 1 - result.steps[-1]
    assert (kept == result.schedule.budget_min + last).all()
