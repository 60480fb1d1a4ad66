"""A slow scalar BeaconKV in float64, written from the description of the method alone.

It shares no code with the library: plain loops over one row, one query head at a time.
"""

import math


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a, b):
    if a is b:
        return float(any(a))
    na, nb = math.sqrt(dot(a, a)), math.sqrt(dot(b, b))
    return 0.0 if na == 0 or nb == 0 else dot(a, b) / (na * nb)


def fps(queries, m):
    """Indices of m queries, farthest points by cosine."""
    n = len(queries)
    m = min(m, n)
    if m == 0:
        return []
    cos = [[cosine(a, b) for b in queries] for a in queries]
    mean = [sum(row) / n for row in cos]
    picks = [min(range(n), key=lambda i: (mean[i], i))]
    nearest = list(cos[picks[0]])
    while len(picks) < m:
        r = min((j for j in range(n) if j not in picks), key=lambda j: (nearest[j], j))
        picks.append(r)
        nearest = [max(nearest[j], cos[j][r]) for j in range(n)]
    return picks


def fps_error(queries, picks):
    """How far a sequence of picks is from the greedy rule: 0 for the exact one, rounding for a near tie."""
    n = len(queries)
    cos = [[cosine(a, b) for b in queries] for a in queries]
    mean = [sum(row) / n for row in cos]
    error = mean[picks[0]] - min(mean) if picks else 0.0
    nearest = [-math.inf] * n
    for i, pick in enumerate(picks):
        if i:
            error = max(error, nearest[pick] - min(nearest[j] for j in range(n) if j not in picks[:i]))
        nearest = [max(nearest[j], cos[j][pick]) for j in range(n)]
    return error


def rope_half(x, position, inv_freq, factor=1.0):
    """Rotation of pairs (i, i + half) by position * inv_freq, scaled by the attention factor."""
    half = len(inv_freq)
    out = list(x)
    for i, frequency in enumerate(inv_freq):
        c, s = factor * math.cos(position * frequency), factor * math.sin(position * frequency)
        out[i] = x[i] * c - x[i + half] * s
        out[i + half] = x[i + half] * c + x[i] * s
    return out


class HeadQueries:
    """Continual FPS of one query head with the cycle of Algorithm 2."""

    def __init__(self, n_recent, n_beacon, budget, chunk):
        self.n_recent, self.n_beacon, self.budget, self.chunk = n_recent, n_beacon, budget, chunk
        self.buffer, self.cycle, self.everything = [], [], []  # cycle: queries set apart since the boundary

    def reduce(self):
        if len(self.buffer) > self.n_beacon:
            self.buffer = [self.buffer[i] for i in fps(self.buffer, self.n_beacon)]

    def prompt(self, queries):
        """Prefill of an empty cache with more than one token."""
        self.everything += queries
        length = len(queries)
        boundary = max(length, self.budget) - self.n_recent
        history = queries[: max(0, min(length, boundary))]
        for start in range(0, len(history), self.chunk):
            self.buffer += history[start : start + self.chunk]
            self.reduce()
        self.cycle = queries[len(history) :]

    def step(self, query, length):
        """One decode step that made the cache ``length`` long."""
        self.everything.append(query)
        if length <= self.budget - self.n_recent:
            self.buffer.append(query)
            if length == self.budget - self.n_recent or len(self.buffer) >= self.n_beacon + self.n_recent:
                self.reduce()
        else:
            self.cycle.append(query)

    def evicted(self):
        self.buffer += self.cycle
        self.cycle = []
        self.reduce()

    @property
    def recents(self):
        return self.everything[-self.n_recent :]


def weights(query, position, keys, positions, scale, sink=None):
    logits = [scale * dot(query, k) if p <= position else None for k, p in zip(keys, positions, strict=True)]
    seen = [x for x in logits if x is not None] + ([] if sink is None else [sink])
    top = max(seen)
    total = sum(math.exp(x - top) for x in seen)
    return [0.0 if x is None else math.exp(x - top) / total for x in logits]


def pooled(values, how):
    return max(values) if how == "max" else sum(values) / len(values)


def scores(heads, keys, positions, now, turn, scale, query_pool="max", group_pool="max"):
    """Score of each entry of one KV head.

    Args:
        heads: the HeadQueries of the group.
        keys: after RoPE, in any order; positions: their logical positions.
        turn: (vector, position) -> vector after RoPE.
    """
    per_head = []
    for head in heads:
        rows = [weights(turn(q, now), now, keys, positions, scale) for q in head.buffer]
        recents = head.recents
        for i, q in enumerate(recents):
            tau = now - len(recents) + 1 + i
            rows.append(weights(turn(q, tau), tau, keys, positions, scale))
        per_head.append([pooled([row[j] for row in rows], query_pool) for j in range(len(keys))])
    return [pooled([head[j] for head in per_head], group_pool) for j in range(len(keys))]


def keep(score_of, budget_min, prefix, protect):
    """Positions to keep; score_of maps position -> score."""
    order = sorted(score_of)
    forced = order[:prefix] + order[len(order) - protect :] if protect else order[:prefix]
    middle = order[prefix : len(order) - protect]
    best = sorted(middle, key=lambda p: (-score_of[p], p))[: budget_min - len(forced)]
    return sorted(forced + best)
