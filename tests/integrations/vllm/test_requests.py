"""Requests in a paged cache keep what each would keep alone in a layer of its own. No vLLM needed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import EvictionSchedule, make_policy, ops
from beaconkv.cache import BoundedLayer
from beaconkv.integrations.vllm.entries import half_by_half, positions_of, read, side_by_side, slots_of, write
from beaconkv.integrations.vllm.requests import BoundedAttention, LayerGroup, is_step
from beaconkv.integrations.vllm.rotary import LayerRope
from beaconkv.types import AttentionParams

LAYERS, HEADS, KV_HEADS, DIM, SIZE, BLOCKS = 3, 4, 2, 4, 4, 400
POLICIES = ["beaconkv", "rpc", "snapkv", "rkv", "streaming_llm", "tova", "naive_fps", "random_history", "recent:32"]
ANGLE = torch.arange(400).unsqueeze(1) * torch.tensor([1.0, 0.13] * 2)
ROPE = LayerRope(ANGLE.cos(), ANGLE.sin(), ops.apply_half)
SINKS = torch.randn(LAYERS, HEADS, generator=torch.Generator().manual_seed(0))
PARAMS = {
    "plain": [AttentionParams(0.7)] * LAYERS,
    "with sinks": [AttentionParams(0.7, 3.0, sinks) for sinks in SINKS],
    "each its own softcap": [AttentionParams(0.7, softcap) for softcap in (None, 1.0, 4.0)],
}
"""By layer, how logits are computed."""


class Text:
    """The queries, keys and values that one request brings to each layer."""

    def __init__(self, length, generator):
        self.queries = torch.randn(LAYERS, HEADS, length, DIM, generator=generator) * 2
        self.keys, self.values = torch.randn(2, LAYERS, KV_HEADS, length, DIM, generator=generator) * 2


def alone(policy, schedule, chunk, params, text, prompt, length):
    """Of layers that hold nothing else: (positions, keys, values) of each, evictions, entries dropped per KV head."""
    held = []
    for number in range(LAYERS):
        layer = BoundedLayer(policy, schedule)
        layer.allocate(text.keys[number, None, :, :1], text.values[number, None, :, :1], [prompt])
        start = 0
        while start < length:
            stop = min(start + chunk, prompt, length) if start < prompt else start + 1
            part = slice(start, stop)
            layer.append(text.keys[number, None, :, part], text.values[number, None, :, part])
            layer.observe(text.queries[number, None, :, part], ROPE.steps(start, stop), params[number])
            start = stop
        size = layer.slab.lengths[0]
        held.append((layer.slab.positions[0, :, :size], layer.slab.keys[0, :, :size], layer.slab.values[0, :, :size]))
    return held, layer.num_evictions[0], layer.entries_dropped // KV_HEADS


class Server:
    """Does to a group of layers what vLLM's steps do, attention apart."""

    def __init__(self, policy, schedule, chunk, views, max_requests, params=PARAMS["plain"]):
        width = 2 * DIM
        self.caches = [torch.full((BLOCKS, KV_HEADS, SIZE, width), float("nan")) for _ in range(LAYERS)]
        layers = [
            BoundedAttention(str(n), HEADS, KV_HEADS, DIM, ROPE, params[n], lambda n=n: self.caches[n])
            for n in range(LAYERS)
        ]
        self.views = views
        self.group = LayerGroup(
            policy, schedule, chunk, layers, views, max_requests, torch.float32, torch.device("cpu")
        )
        self.tables, self.free = {}, torch.randperm(BLOCKS).tolist()

    def step(self, deals, texts):
        """deals: tokens of each request, by name."""
        planned = []
        for name, tokens in deals.items():
            start = self.group.requests[name].progress.seen
            table = self.tables.setdefault(name, [])
            while len(table) * SIZE < self.group.requests[name].progress.settled + tokens:
                table.append(self.free.pop())
            table = torch.tensor(table, dtype=torch.int32)
            request, chunks = self.group.advance(name, tokens, table)
            place = self.group.place(request) if is_step(chunks) else None
            planned.append((name, start, table, request, chunks, place))
        for number in range(LAYERS):
            for name, start, table, request, chunks, place in planned:
                text, evicted = texts[name], False
                self.store(number, table, chunks[0].stored, text, start, chunks[-1].stop)
                if place is not None:
                    rows, columns = (torch.tensor([n]) for n in place)
                    if self.group.watches:
                        self.group.watch(number, rows, columns, text.queries[number, :, start][None])
                    continue
                for order, chunk in enumerate(chunks):
                    if evicted:
                        self.store(number, table, chunk.stored, text, chunk.start, chunk.stop)
                    queries = text.queries[number, :, chunk.start : chunk.stop].transpose(0, 1).clone()
                    self.group.observe(number, request, chunk, queries)
                    queries.fill_(float("nan"))  # vLLM writes the next step's there
                    if chunk.keep is not None and order + 1 < len(chunks):
                        self.group.evict(number, request, chunk, table)
                        evicted = True

    def store(self, number, table, slot, text, start, stop):
        slots = torch.arange(slot, slot + stop - start).expand(KV_HEADS, -1)
        for entries, new in zip(self.views(self.caches[number]), (text.keys, text.values), strict=True):
            write(entries, table, slots, new[number, :, start:stop])

    def held(self, name):
        """As :func:`alone`, after what is still due."""
        request, table = self.group.requests[name], torch.tensor(self.tables[name], dtype=torch.int32)
        progress = request.progress
        if progress.due is not None:
            self.group.advance(name, 0, table)
        result = []
        for number in range(LAYERS):
            joint = len(request.states) < LAYERS
            held = request.held[0 if joint else number]
            if joint and held is not None:
                held = held.chunk(LAYERS)[number]
            keys, values = (read(e, table, progress.stored) for e in self.views(self.caches[number]))
            result.append((positions_of(held, KV_HEADS, progress.stored, progress.seen, keys.device), keys, values))
        return result


def same(one, other):
    for (p, *mine), (q, *theirs) in zip(one, other, strict=True):
        by_time, others = p.argsort(-1), q.argsort(-1)
        assert torch.equal(p.gather(1, by_time), q.gather(1, others))
        for a, b in zip(mine, theirs, strict=True):
            index, other_index = (order.unsqueeze(-1).expand(-1, -1, DIM) for order in (by_time, others))
            assert torch.equal(a.gather(1, index), b.gather(1, other_index))


@st.composite
def cases(draw):
    prefix, protect = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    budget = draw(st.integers(prefix + protect + 2, 40))
    budget_min = draw(st.integers(max(1, prefix + protect), budget - 1))
    spec = draw(st.sampled_from(POLICIES))
    name, _, preset = spec.partition(":")
    few = {} if name in ("streaming_llm", "tova") else {"n_recent": draw(st.integers(1, 6))}
    if name == "beaconkv":
        few |= {"n_beacon": draw(st.integers(0, 6)), "sample_chunk": draw(st.sampled_from([3, 512]))}
    requests = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=3))
    return dict(
        policy=make_policy(spec, **few),
        schedule=EvictionSchedule(budget, budget_min, draw(st.sampled_from(["total", "output"])), prefix, protect),
        chunk=draw(st.sampled_from([1, 4, 16, 64])),
        requests=requests,
        most=draw(st.sampled_from([1, 3, 20, 64])),
        views=draw(st.sampled_from([side_by_side, half_by_half])),
        params=PARAMS[draw(st.sampled_from(sorted(PARAMS)))],
        restart=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


@settings(max_examples=150)
@given(cases())
def test_each_request_keeps_what_it_keeps_alone(case):
    run(**case)


def run(policy, schedule, chunk, requests, most, views, params, restart, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    texts = {str(n): Text(prompt + steps, generator) for n, (prompt, steps) in enumerate(requests)}
    server = Server(policy, schedule, chunk, views, len(requests), params)
    lengths = {str(n): sum(request) for n, request in enumerate(requests)}
    for n, (prompt, _) in enumerate(requests):
        server.group.begin(str(n), prompt)

    def deal(known):
        """Random numbers of tokens for random requests; text that is not yet written comes one by one."""
        while True:
            left = {}
            for name, until in known.items():
                seen, prompt = server.group.requests[name].progress.seen, requests[int(name)][0]
                if seen < lengths[name]:
                    ready = max(until, prompt) - seen
                    left[name] = int(torch.randint(1, min(most, ready) + 1, ())) if ready > 0 else 1
            if not left:
                return
            names = [name for name in left if torch.rand(()) < 0.7] or list(left)
            server.step({name: left[name] for name in names}, texts)
            if known is start and restart and torch.rand(()) < 0.02:
                return

    start = dict.fromkeys(texts, 0)
    deal(start)
    if restart:  # preempted: the text so far comes again, several tokens at a time
        again = {name: server.group.requests[name].progress.seen for name in texts}
        for name in texts:
            server.group.begin(name, requests[int(name)][0])
            server.free += server.tables.pop(name, [])
        deal(again)
    evictions = dropped = 0
    for name, (prompt, _) in zip(texts, requests, strict=True):
        held, own_evictions, own_dropped = alone(policy, schedule, chunk, params, texts[name], prompt, lengths[name])
        same(server.held(name), held)
        evictions, dropped = evictions + own_evictions, dropped + own_dropped
    totals = server.group.totals
    if not restart:
        assert (totals.seen, totals.evictions, totals.dropped) == (sum(lengths.values()), evictions, dropped)


@pytest.mark.parametrize("views", [side_by_side, half_by_half])
def test_entries_are_read_where_they_were_written(views):
    cache = torch.zeros(5, KV_HEADS, SIZE, 2 * DIM)
    table, new = torch.tensor([3, 0, 4], dtype=torch.int32), torch.randn(2, KV_HEADS, 11, DIM)
    slots = torch.stack([torch.randperm(11) for _ in range(KV_HEADS)])
    for entries, own in zip(views(cache), new, strict=True):
        write(entries, table, slots, own.gather(1, slots.unsqueeze(-1).expand(-1, -1, DIM)))
        assert torch.equal(read(entries, table, 11), own)
    assert torch.equal(cache[1], torch.zeros_like(cache[1]))
    assert slots_of(table, 3, 6, SIZE).tolist() == [3 * SIZE + 3, 0, 1]


def test_rows_of_the_window_are_given_back():
    policy = make_policy("beaconkv")
    server = Server(policy, EvictionSchedule(64), 16, side_by_side, 2)
    for name in "abcabc":
        server.group.begin(name, 5)
        if len(server.group.requests) == 2:
            server.group.drop(name)
    server.group.drop("a")
    server.group.drop("unknown")
    assert not server.group.requests
    assert sorted(server.group._free_rows) == [0, 1]
