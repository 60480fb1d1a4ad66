"""Mistakes in where entries live and when they are evicted."""

from ..mutant import mutants_of

STACK, SCALAR, GROWTH, ROWS, HIDDEN, CONTRACT = (
    "cache/test_stack", "cache/test_layer_against_scalar", "cache/test_growth", "cache/test_rows",
    "integrations/test_hidden_entries", "policies/test_contract",
)  # fmt: skip

counts = mutants_of("cache/counts.py", STACK, GROWTH, ROWS)
schedule = mutants_of("schedule.py", "test_schedule", "cache/test_progress", GROWTH, STACK)
slab = mutants_of("cache/slab.py", "cache/test_slab", STACK, ROWS, SCALAR, HIDDEN)
autocast = mutants_of("cache/slab.py", "integrations/test_generate")
layer = mutants_of("cache/layer.py", GROWTH, STACK, ROWS, CONTRACT, SCALAR)
eviction = mutants_of("cache/eviction.py", GROWTH, STACK, ROWS, CONTRACT, SCALAR)
stack = mutants_of("cache/stack.py", STACK, ROWS)
progress = mutants_of("cache/progress.py", "cache/test_progress", "integrations/vllm/test_requests")

MUTANTS = [
    counts(
        "copies share their lengths on the device", "own.lengths_on_device = self.lengths_on_device.clone()", "pass"
    ),
    counts(
        "copies share what the host counts",
        "own.rows = [row.copy() for row in self.rows]",
        "pass",
    ),
    counts("a step is not counted on the device", "self.num_seen_on_device.add_(1)", "pass"),
    counts(
        "a chunk of some rows counts for all",
        "counted[rows.index] += tokens",
        "counted.add_(tokens)",
    ),
    counts(
        "counters stay when rows move",
        "self.rows = [self.rows[number].copy() for number in numbers]",
        "pass",
    ),
    counts(
        "rows that were copied count together",
        "[self.rows[number].copy() for number in numbers]",
        "[self.rows[number] for number in numbers]",
    ),
    counts(
        "an eviction of some rows sets all lengths",
        "self.lengths_on_device[rows.index] = length",
        "self.lengths_on_device.fill_(length)",
    ),
    schedule("another budget_min by default", "7 * self.budget // 8)", "7 * (self.budget // 8))"),
    schedule("a step keeps what a prompt left over", "+ length - self.full_in_step_at(prompt, evictions)", ""),
    schedule(
        "every eviction comes early",
        "if full_at is None or evictions else full_at - self.early",
        "if full_at is None else full_at - self.early",
    ),
    schedule("the cache does not grow", "self.budget + evictions * self.growth", "self.budget"),
    schedule("what is left does not grow", "self.budget_min + evictions * self.growth", "self.budget_min"),
    schedule(
        "a prompt that just fits is refused",
        "prompt + self.protect > budget_min",
        "prompt + self.protect >= budget_min",
    ),
    schedule(
        "no eviction need find anything", "<= self.budget_min < self.budget:", "<= self.budget_min <= self.budget:"
    ),
    schedule(
        "one step too early is allowed",
        "if self.early >= self.budget - self.budget_min:",
        "if self.early > self.budget - self.budget_min:",
    ),
    schedule("all layers at once", "early=phase * cycle // phases", "early=0"),
    schedule(
        "a prompt is evicted as deep whatever the phase",
        "later = self.budget - self.budget_min - self.early if self.early else 0",
        "later = 0",
    ),
    schedule("scope output: the prompt counts", '(prompt if self.scope == "output" else 0)', "0"),
    schedule("scope output: the prompt is not what stays", "return budget_min + prompt", "return budget_min"),
    slab("shorter rows show their free slots", "if self.shortest >= size:", "if self.longest >= size:"),
    slab(
        "the slots of a ragged step move on with the counts",
        "slots = row, counts.lengths_on_device.clone()",
        "slots = row, counts.lengths_on_device",
    ),
    slab(
        "a ragged step notes the next position",
        "self.positions[row, :, slots[1]] = counts.num_seen_on_device.unsqueeze(1)",
        "self.positions[row, :, slots[1]] = counts.num_seen_on_device.unsqueeze(1) + 1",
    ),
    slab("a ragged step writes no values", "(self.values[layer], values)):", "(self.keys[layer], keys)):"),
    autocast("a ragged step keeps the dtype that comes", "new[:, :, 0].to(slab.dtype)", "new[:, :, 0]"),
    slab("a step writes no values", "self.new_values[layer].copy_(values[:, :, 0])", "pass"),
    slab(
        "values stay where they were",
        "ops.fill_holes([self.keys, self.values, self.positions]",
        "ops.fill_holes([self.keys, self.positions]",
    ),
    slab(
        "values of an evicted prompt are not stored",
        "((self.keys, view.keys), (self.values, view.values), (self.positions, view.positions)):",
        "((self.keys, view.keys), (self.positions, view.positions)):",
    ),
    slab("a grown slab forgets", "new[:, :, : old.shape[2]] = old", "pass"),
    slab("rows do not move", "slab[:, :, :stored].index_select(0, index)", "slab[: index.shape[0], :, :stored]"),
    slab("free slots are held", ".masked_fill(free, last).sort", ".sort"),
    slab(
        "only keys of a stack's first layer",
        "return self.whole.keys[:, self.heads]",
        "return self.whole.keys[:, : self.heads.stop - self.heads.start]",
    ),
    slab("a slab grows too little", "-(-missing // GROWTH) * GROWTH", "missing // GROWTH * GROWTH"),
    layer("an eviction comes one step late", "if min(left) <= 0:", "if min(left) < 0:"),
    eviction(
        "the memory does not follow the compaction",
        "state.evicted(store.retain(view, keep), view.rows)",
        "store.retain(view, keep)",
    ),
    layer(
        "now is the next token",
        "rows.take(slab.num_seen_on_device).long() - 1",
        "rows.take(slab.num_seen_on_device).long()",
    ),
    layer(
        "dropped entries of one row are counted",
        "* view.positions.shape[0] * view.positions.shape[1]",
        "* view.positions.shape[1]",
    ),
    layer("free slots are seen", "held = held.masked_fill(~valid.unsqueeze(1), FREE)", "pass"),
    layer(
        "rows with other memories are alike",
        "return self.rows[number].group, self.state.row_key(number)",
        "return self.rows[number].group",
    ),
    layer(
        "rows that are evicted at other lengths are alike",
        "return self.rows[number].group, self.state.row_key(number)",
        "return self.rows[number].stored, self.state.row_key(number)",
    ),
    layer(
        "rows of other numbers of tokens may stand for each other",
        "self.state.row_key(n), row.seen, row.evictions)",
        "self.state.row_key(n), row.evictions)",
    ),
    layer(
        "rows of other numbers of evictions may stand for each other",
        "self.state.row_key(n), row.seen, row.evictions)",
        "self.state.row_key(n), row.seen)",
    ),
    layer(
        "any row may stand for another",
        "[0] * index.shape[0] if len(alike) == 1 else index.tolist()",
        "[0] * index.shape[0]",
    ),
    layer("memory stays when rows move", "self.state.select_rows(index, numbers)", "pass"),
    eviction(
        "events show slots that change", "tables = view.positions.clone(), scores", "tables = view.positions, scores"
    ),
    layer("a fixed prefix", "keep, self.schedule.prefix_for(row.prompt),", "keep, self.schedule.fixed_prefix,"),
    stack(
        "unstacked layers share their counts", "self.whole.slab.counts.clone(), state", "self.whole.slab.counts, state"
    ),
    stack("all layers' queries in one place", "self._by_layer[number].copy_", "self._by_layer[0].copy_"),
    stack("layers of other scaling are stacked", "same = {(p.scaling, p.softcap,", "same = {(p.softcap,"),
    stack("layers of other softcap are stacked", "same = {(p.scaling, p.softcap,", "same = {(p.scaling,"),
    stack("evictions of steps are not counted", "else [self.whole, *self.layers]\n\n", "else self.layers\n\n"),
    stack(
        "entries of unstacked layers stay when rows move", "self.whole.slab.move_rows(index.to(device), stored)", "pass"
    ),
    stack("a second layer's entry in the first one's place", "step.write(number, keys", "step.write(0, keys"),
    progress(
        "evictions are not counted",
        "self.stored, self.due = self.due, None\n            self.evictions += 1",
        "self.stored, self.due = self.due, None",
    ),
    progress("a chunk of one token is a prompt's", "chunk_end - chunk_start > 1", "chunk_end - chunk_start > 0"),
    progress(
        "a chunk may come on top of nothing",
        "schedule.budget - 1 + (chunk - 1) + tokens",
        "schedule.budget - 1 + tokens",
    ),
    progress(
        "a row that is almost full needs no slot more",
        "schedule.budget - 1 + (chunk - 1) + tokens",
        "schedule.budget - 2 + (chunk - 1) + tokens",
    ),
    progress(
        "chunks begin where a step begins", "chunk_start = start // self.chunk * self.chunk", "chunk_start = start"
    ),
    progress(
        "a prompt's single tokens run together",
        "1 if start < self.prompt else max(self.left, 1))",
        "max(self.left, 1))",
        equivalent="they are steps like those that follow, and a chunk of steps ends where an eviction is due",
    ),
    progress(
        "a prompt leaves what a step leaves",
        "self.schedule.kept_in_chunk(self.prompt, self.evictions)",
        "self.schedule.kept_for(self.prompt, self.evictions)",
    ),
    progress(
        "evicted in the middle of a chunk", "if self.seen == chunk_end else None", "if self.seen <= chunk_end else None"
    ),
    progress(
        "a step keeps what is over",
        "self.schedule.kept_in_step(self.prompt, self.evictions, self.stored)",
        "self.schedule.kept_for(self.prompt, self.evictions)",
    ),
]
