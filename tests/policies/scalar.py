"""Scores of the compared methods in float64, one row, one entry at a time, from their formulas alone.

Plain loops over lists; it shares no code with the library.
"""

import math
import random
from dataclasses import dataclass

from tests.reference import HeadQueries, cosine, dot, fps, pooled


@dataclass
class Method:
    """The published choices, spelled out (not read from the library's policies)."""

    recent: int = 16
    beacons: str = "none"  # none, initial, random, fps, centroid, nearest, continual
    n_beacon: int = 0
    query_pool: str = "max"
    group_pool: str = "max"  # max, mean, logits
    all_heads: bool = False
    past_only: bool = False
    value_norm: bool = False
    smooth: str = "none"
    kernel: int = 7
    redundancy: float = 0.0  # weight of redundancy
    threshold: float = 0.5  # of redundancy
    normalise: bool = True
    iterations: int = 10
    seed: int = 0
    beacon_scale: float = 1.0  # factor of the logits of beacons
    recent_scale: float = 1.0
    kind: str = "observation"  # observation, accumulated


def norm(vector):
    return math.sqrt(dot(vector, vector))


def softmax(logits):
    top = max(logits)
    total = sum(math.exp(x - top) for x in logits)
    return [math.exp(x - top) / total for x in logits]


def visible_weights(logits, visible):
    """Softmax over the entries that are visible, 0 elsewhere."""
    seen = [i for i, v in enumerate(visible) if v]
    out = [0.0] * len(logits)
    if seen:
        for i, w in zip(seen, softmax([logits[i] for i in seen]), strict=True):
            out[i] = w
    return out


def smoothed(score_of, how, kernel):
    """score_of: position -> score."""
    order, half = sorted(score_of), kernel // 2
    out = {}
    for i, p in enumerate(order):
        window = [score_of[order[j]] for j in range(max(0, i - half), min(len(order), i + half + 1))]
        out[p] = max(window) if how == "max" else sum(window) / len(window)
    return out


def redundancy(key_of, threshold=0.5):
    """key_of: position -> key. Position -> redundancy."""
    order = sorted(key_of)
    cos = {(i, j): cosine(key_of[i], key_of[j]) if i != j else 0.0 for i in order for j in order}
    for i in order:
        alike = [j for j in order if cos[i, j] > threshold]
        if alike:
            cos[i, max(alike)] = 0.0
    mean = [sum(cos[i, j] for i in order) / len(order) for j in order]
    return dict(zip(order, softmax(mean), strict=True))


def reservoir(count, size, seed):
    """Step numbers of a sample of ``size``: Vitter's algorithm R."""
    draws, sample = random.Random(seed), list(range(min(count, size)))
    for number in range(size, count):
        place = draws.randrange(number + 1)
        if place < size:
            sample[place] = number
    return sample


def kmeans(queries, k, iterations):
    """Centroids, and unit centres, of k-means by cosine from farthest points."""
    seeds = fps(queries, k)
    unit = [[x / norm(q) for x in q] if any(q) else list(q) for q in queries]
    centres = [unit[s] for s in seeds]
    for _ in range(iterations):
        owner = [max(range(len(seeds)), key=lambda c, u=u: (dot(centres[c], u), -c)) for u in unit]
        for c in range(len(seeds)):
            members = [u for u, o in zip(unit, owner, strict=True) if o == c]
            if members:
                total = [sum(x) for x in zip(*members, strict=True)]
                centres[c] = [x / norm(total) for x in total] if any(total) else total
    centroids = []
    for c, seed in enumerate(seeds):
        members = [q for q, o in zip(queries, owner, strict=True) if o == c]
        centroids.append([sum(x) / len(members) for x in zip(*members, strict=True)] if members else queries[seed])
    return centroids, centres


def nearest(queries, centres):
    taken = []
    for centre in centres:
        cos = {i: cosine(query, centre) for i, query in enumerate(queries) if i not in taken}
        best = max(cos.values())
        taken.append(min(i for i, c in cos.items() if c >= best - 1e-5))
    return [queries[i] for i in taken]


class Row:
    """What one row of one layer has seen.

    Args:
        method: which formula.
        turn: (vector before RoPE, position) -> after RoPE.
        kv_heads, group: H_kv, G.
        scale: of the logits.
        full_at: entries at which the row is evicted, for continual FPS.
    """

    def __init__(self, method, turn, kv_heads, group, scale, full_at):
        self.method, self.turn, self.kv_heads, self.group, self.scale = method, turn, kv_heads, group, scale
        self.before = [[] for _ in range(kv_heads * group)]  # queries before RoPE
        self.after = [[] for _ in range(kv_heads * group)]
        self.keys, self.values = [[] for _ in range(kv_heads)], [[] for _ in range(kv_heads)]
        self.held = [[] for _ in range(kv_heads)]  # positions
        self.received = [{} for _ in range(kv_heads)]  # position -> attention so far
        self.continual = [HeadQueries(method.recent, method.n_beacon, full_at, 512) for _ in self.before]

    def see(self, before, after, keys, values):
        """New tokens: per head, lists of vectors."""
        start, n = len(self.keys[0]), len(keys[0])
        for head, (b, a) in enumerate(zip(before, after, strict=True)):
            self.before[head] += b
            self.after[head] += a
        for head in range(self.kv_heads):
            self.keys[head] += keys[head]
            self.values[head] += values[head]
            self.held[head] += range(start, start + n)
        if self.method.kind == "accumulated":
            for t in range(start, start + n):
                self._accumulate(t)
        if self.method.beacons == "continual":
            for head, queries in zip(self.continual, before, strict=True):
                if n > 1:
                    head.prompt(queries)
                else:
                    head.step(queries[0], len(self.held[0]))

    def _accumulate(self, t):
        for head in range(self.kv_heads):
            for h in range(head * self.group, (head + 1) * self.group):
                logits = [self.scale * dot(self.after[h][t], self.keys[head][p]) for p in self.held[head]]
                weights = visible_weights(logits, [p <= t for p in self.held[head]])
                for p, w in zip(self.held[head], weights, strict=True):
                    self.received[head][p] = self.received[head].get(p, 0.0) + w

    def evicted(self, kept):
        """kept: per KV head, positions."""
        self.held = [list(positions) for positions in kept]
        self.received = [{p: r[p] for p in ps if p in r} for r, ps in zip(self.received, kept, strict=True)]
        for head in self.continual:
            head.evicted()

    def observation_queries(self, h):
        """(vector after RoPE, position, scale of its logits) of query head h."""
        m, now = self.method, len(self.before[h]) - 1
        past = self.before[h][: max(0, now + 1 - m.recent)]
        size = min(m.n_beacon, len(past))
        beacons = {
            "none": lambda: [],
            "initial": lambda: past[:size],
            "random": lambda: [past[i] for i in reservoir(len(past), size, m.seed)] if size else [],
            "fps": lambda: [past[i] for i in fps(past, size)],
            "centroid": lambda: kmeans(past, size, m.iterations)[0] if size else [],
            "nearest": lambda: nearest(past, kmeans(past, size, m.iterations)[1]) if size else [],
            "continual": lambda: self.continual[h].buffer,
        }[m.beacons]()
        recents = [(self.after[h][t], t, m.recent_scale) for t in range(max(0, now + 1 - m.recent), now + 1)]
        return [(self.turn(q, now), now, m.beacon_scale) for q in beacons] + recents

    def attention(self, head):
        """Position -> pooled attention of one KV head."""
        m, now, held = self.method, len(self.before[0]) - 1, self.held[head]
        inside = [not m.past_only or p <= now - m.recent for p in held]
        per_head = []
        for h in range(head * self.group, (head + 1) * self.group):
            rows = []
            for query, position, scale in self.observation_queries(h):
                logits = [scale * self.scale * dot(query, self.keys[head][p]) for p in held]
                rows.append((logits, [p <= position and i for p, i in zip(held, inside, strict=True)]))
            per_head.append(rows)
        if m.group_pool == "logits":
            merged = [
                visible_weights([max(x) for x in zip(*(logits for logits, _ in same), strict=True)], same[0][1])
                for same in zip(*per_head, strict=True)
            ]
            return {p: pooled([w[i] for w in merged], m.query_pool) for i, p in enumerate(held)}
        weights = [[visible_weights(*row) for row in rows] for rows in per_head]
        return {
            p: pooled([pooled([w[i] for w in rows], m.query_pool) for rows in weights], m.group_pool)
            for i, p in enumerate(held)
        }

    def scores(self):
        """Per KV head, position -> score."""
        m = self.method
        if m.kind == "accumulated":
            return [dict(received) for received in self.received]
        scores = [self.attention(head) for head in range(self.kv_heads)]
        if m.value_norm:
            scores = [{p: s * norm(self.values[h][p]) for p, s in scores[h].items()} for h in range(self.kv_heads)]
        if m.smooth != "none":
            scores = [smoothed(s, m.smooth, m.kernel) for s in scores]
        if m.redundancy:
            for h, s in enumerate(scores):
                total = sum(s.values()) if m.normalise else 1.0
                repeats = redundancy({p: self.keys[h][p] for p in s}, m.threshold)
                scores[h] = {p: (1 - m.redundancy) * s[p] / total - m.redundancy * repeats[p] for p in s}
        if m.all_heads:
            how = "mean" if m.group_pool == "logits" else m.group_pool
            scores = [{p: pooled([s[p] for s in scores], how) for p in scores[0]}] * self.kv_heads
        return scores
