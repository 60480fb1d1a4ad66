"""Mistakes in what is kept: policies and their memory."""

from ..mutant import mutants_of

FORMULA, CONTRACT, STACK, ROWS = (
    "policies/test_against_formula", "policies/test_contract", "cache/test_stack", "cache/test_rows",
)  # fmt: skip

types = mutants_of("types.py", CONTRACT, "cache/test_layer_against_scalar")
base = mutants_of("policies/base.py", STACK)
h2o = mutants_of("policies/h2o.py", "policies/test_h2o", ROWS, STACK, CONTRACT, FORMULA)
buffer = mutants_of(
    "policies/query_buffer.py", "policies/test_query_buffer", ROWS, STACK, "cache/test_layer_against_scalar", CONTRACT
)
history = mutants_of("policies/history.py", "policies/test_history", ROWS, STACK, FORMULA, CONTRACT)
observation = mutants_of("policies/observation.py", FORMULA, STACK)
retention = mutants_of("policies/retention.py", "policies/test_history", FORMULA)
beacon = mutants_of("policies/beacon.py", "policies/test_presets", "cache/test_layer_against_scalar")
random_history = mutants_of("policies/random_history.py", FORMULA)
rkv = mutants_of("policies/rkv.py", FORMULA)
streaming = mutants_of("policies/streaming_llm.py", FORMULA, CONTRACT)

MUTANTS = [
    types("steps of a ragged batch take cos for sin", "pick(self.sin), self.apply", "pick(self.cos), self.apply"),
    types(
        "the rope of some rows is that of the first",
        "rows.take(self.cos), rows.take(self.sin)",
        "self.cos[: len(rows)], self.sin[: len(rows)]",
    ),
    types(
        "written to the first rows, not those named", "target[self.index] = value", "target[: len(self.index)] = value"
    ),
    base(
        "every layer takes the first one's memory",
        "tensor.chunk(count, dim=1)[number]",
        "tensor.chunk(count, dim=1)[0]",
    ),
    base("a promise is inherited with other methods", "cls.per_head = False", "pass"),
    h2o(
        "the first rows' sums, not those named",
        "self.sums[rows.index, :, :size] += received",
        "self.sums[: len(rows), :, :size] += received",
    ),
    h2o("sums stay when rows move", "self.sums = persistent_rows(self.sums, index)", "pass"),
    h2o("a new number of rows is not noted", "self.batch = len(numbers)", "pass"),
    h2o("the largest of the heads, not the sum", "weights.sum(dim=(2, 3))", "weights.amax(dim=2).sum(dim=2)"),
    h2o("queries of a chunk are one step older", "device=part.device) - 1", "device=part.device)"),
    h2o("scores are the memory itself", ": view.keys.shape[2]].clone()", ": view.keys.shape[2]]"),
    h2o(
        "sums of free slots stay",
        "rows.put(self.sums, 2, kept.shape[2], kept.new_zeros(*kept.shape[:2], free))",
        "pass",
    ),
    buffer(
        "joined queries are always reduced",
        "return False if left > 0 and is_full else None",
        "return True if left > 0 and is_full else None",
    ),
    buffer(
        "a full buffer is reduced one step late", "fresh + history >= self.n_beacon", "fresh + history > self.n_beacon"
    ),
    buffer(
        "the cycle's beacons are fixed a step early",
        "if left == self.n_recent and fresh:",
        "if left == self.n_recent + 1 and fresh:",
    ),
    buffer(
        "the ring does not wrap",
        "self.next = (self.next + 1) % self.n_recent",
        "self.next = min(self.next + 1, self.n_recent - 1)",
    ),
    buffer(
        "several steps: the ring does not wrap",
        "self.next = (self.next + count) % self.n_recent",
        "self.next = min(self.next + count, self.n_recent - 1)",
    ),
    buffer(
        "one step too many at once",
        "and count < self.n_recent\n",
        "and count <= self.n_recent\n",
        equivalent="it takes the slot of the first of them, which is no recent query by then",
    ),
    buffer(
        "nothing is reduced after an eviction",
        "self._join_fresh(rows, reduce=True)",
        "self._join_fresh(rows, reduce=False)",
    ),
    buffer(
        "fresh queries are read from where the next one goes",
        "start, into = (self.next - fresh) % self.n_recent, size",
        "start, into = self.next % self.n_recent, size",
    ),
    buffer("the ring is not aligned before a chunk", "ring.copy_(ring.index_select(dim, order))", "ring.copy_(ring)"),
    buffer(
        "fresh queries are overwritten",
        "spill = fresh if leave else max(0, fresh + stay - self.n_recent)",
        "spill = fresh if leave else 0",
    ),
    buffer(
        "one query of a chunk too many stays fresh",
        "max(self.n_recent - max(until_full, 0), 0)",
        "max(self.n_recent - max(until_full, 0) + 1, 0)",
    ),
    buffer(
        "chunks of a prompt are all rotated from its beginning",
        "rope.steps(start, stop)), rows, reduce=True)",
        "rope.steps(0, stop - start)), rows, reduce=True)",
    ),
    buffer("recent queries stay when rows move", "self.recent = persistent_rows(self.recent, index)", "pass"),
    buffer("history stays when rows move", "self.history = persistent_rows(self.history, index)", "pass"),
    buffer(
        "cos and sin stay when rows move",
        "self.rope = Rope(persistent_rows(self.rope.cos, index), persistent_rows(self.rope.sin, index), "
        "self.rope.apply)",
        "pass",
    ),
    buffer(
        "the length of the history stays when rows move",
        "self.num_history = [self.num_history[row] for row in numbers]",
        "self.num_history = [self.num_history[0] for row in numbers]",
    ),
    buffer(
        "the number of fresh queries stays when rows move",
        "self.num_fresh = [self.num_fresh[row] for row in numbers]",
        "self.num_fresh = [self.num_fresh[0] for row in numbers]",
    ),
    buffer(
        "the number of recent queries stays when rows move",
        "self.num_recent = [self.num_recent[row] for row in numbers]",
        "self.num_recent = [self.num_recent[0] for row in numbers]",
    ),
    buffer(
        "layers that part share their counts",
        "own.num_recent, own.num_fresh = list(self.num_recent), list(self.num_fresh)",
        "pass",
    ),
    buffer(
        "layers that part share their cos and sin",
        "own.rope = Rope(persistent_copy(self.rope.cos), persistent_copy(self.rope.sin), self.rope.apply)",
        "pass",
    ),
    buffer("layers that part share the length of the history", "own.num_history = list(self.num_history)", "pass"),
    history("past queries stay when rows move", "self.past = persistent_rows(self.past, index)", "pass"),
    history(
        "the number of past queries stays when rows move",
        "self.num_past = [self.num_past[row] for row in numbers]",
        "self.num_past = [self.num_past[0] for row in numbers]",
    ),
    history("recent queries stay when rows move", "self.window.select_rows(index, numbers)", "pass"),
    history("as many representatives, however short the history", "min(*sizes, self.n_beacon)", "self.n_beacon"),
    history(
        "the newest leaves, not the oldest",
        "self.window.before_rope(self.n_recent, self.n_recent - 1, rows)",
        "self.window.before_rope(1, 0, rows)",
    ),
    history(
        "layers that part share their counts",
        "own.window, own.num_past = window, list(self.num_past)",
        "own.window, own.num_past = window, self.num_past",
    ),
    history("the history is forgotten when it grows", "new[:, :, :held] = self.past", "pass"),
    history(
        "a chunk is written to the first rows",
        "self.past[rows.index.unsqueeze(1), :, index]",
        "self.past[torch.arange(len(rows)).unsqueeze(1), :, index]",
    ),
    observation("recent queries are one step older", "now - age], dim=1)", "now - age - 1], dim=1)"),
    observation(
        "the oldest recent query is the newest",
        "torch.arange(recents.shape[2] - 1, -1, -1, device=recents.device)",
        "torch.arange(recents.shape[2], device=recents.device)",
    ),
    observation(
        "beacons are not turned", "ops.rotate(state.beacons(view.rows), view.rope)", "state.beacons(view.rows).float()"
    ),
    observation(
        "past_only: one entry more is recent",
        "held > now.unsqueeze(2) - self.n_recent",
        "held >= now.unsqueeze(2) - self.n_recent",
    ),
    observation(
        "redundancy counts for an entry", "- weight * self.redundancy(view)", "+ weight * self.redundancy(view)"
    ),
    observation("importance is never divided by its sum", "if self.normalises_importance:", "if False:"),
    observation("the norm of keys", "view.values.float().norm(dim=-1)", "view.keys.float().norm(dim=-1)"),
    observation(
        "heads of all layers are pooled", "score.unflatten(1, (view.layers, -1))", "score.unflatten(1, (1, -1))"
    ),
    observation(
        "heads are always averaged", 'how = "mean" if self.group_pool == "logits" else self.group_pool', 'how = "mean"'
    ),
    observation(
        "several layers' scores by the kernel of one position",
        "self.position_kernel, self.position_pool)",
        "1, self.position_pool)",
    ),
    retention(
        "one query too many stays",
        "return number if number < self.limit else None",
        "return number if number <= self.limit else None",
    ),
    retention("the reservoir favours newer queries", "self.random.randrange(seen + 1)", "self.random.randrange(seen)"),
    beacon("the size of pieces is not passed on", "self.n_beacon, self.sample_chunk)", "self.n_beacon, 512)"),
    random_history("the seed is not passed on", "Reservoir(self.n_beacon, self.seed)", "Reservoir(self.n_beacon, 0)"),
    rkv("the threshold is not passed on", "view.positions, self.threshold)", "view.positions)"),
    streaming(
        "the oldest stay",
        "(view.positions - view.now.view(-1, 1, 1)).float()",
        "(view.now.view(-1, 1, 1) - view.positions).float()",
    ),
]
